"""`Offering`: how a trainer offers weight versions to engines, besides storing them."""

from typing import Protocol

from schemas.weights import WeightsCarrier
from storage.weights.manifest import WeightManifest


class Offering(Protocol):
    """The trainer's side of a carrier. Engines take a version only after `weights.published`, by its digest."""

    def offer(self, folder: str, manifest: WeightManifest) -> None:
        """Offer a version, before it is published. If that fails, engines read its files.

        folder: the draft of a full version, or the path or URL of a stored delta.
        """

    def carrier(self, version: int, digest: str) -> WeightsCarrier:
        """Return how engines can take a version besides its files; FILES if it is not offered."""

    def retire(self, newest: int | None) -> None:
        """Withdraw the versions before the newest published one; None: all."""
