"""Images, services and manifests to run the system; `check` tests them."""
