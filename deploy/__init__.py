"""Files to run the system with: images, services, manifests; `check` tries them."""
