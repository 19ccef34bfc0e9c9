"""`slime-events nats-config`: print accounts and permissions for a user's own NATS server."""

import argparse
from pathlib import Path

from schemas.errors import InvalidValue
from schemas.subjects import check_token
from storage.nats.accounts import EVERY_RUN, Access, accounts_of, accounts_text, guard, note_url, write_private

PLACEHOLDERS = {access: f"$SLIME_{access.name}_PASSWORD" for access in Access}
FILE = "accounts.conf"
_HEAD = """\
# For the configuration of a NATS server, 2.12 or newer, with JetStream. A server has one block `accounts`: add your
# other accounts to this block. Use these accounts for slime-events alone.
"""
_SET = f"""\
# Set {", ".join(name[1:] for name in PLACEHOLDERS.values())} in the server's environment,
# or replace each of them by a password, or by its bcrypt hash in quotes.
"""


def run(arguments: argparse.Namespace) -> int:
    """Print the block with placeholders; with --out write passwords and credentials into files."""
    name = arguments.name if arguments.name == EVERY_RUN else check_token(arguments.name, "run name")
    if arguments.out is None:
        print(_HEAD + _SET + accounts_text(name, PLACEHOLDERS, agents=arguments.agents))
        return 0
    if any(arguments.out.glob("*")):
        raise InvalidValue(f"--out {arguments.out} is not empty: name a new folder, so that no password is overwritten")
    _write(arguments.out, name, arguments.nats_url or "", agents=arguments.agents)
    print(f"{arguments.out / FILE}: put this file beside the server's configuration, and add `include {FILE}` to that")
    users = ("train, resume and restore", "producers", "gateway", "viewers")
    for access, user in zip(Access, users, strict=True):
        print(f"{arguments.out / access}.json: --nats-creds for {user}")
    return 0


def _write(folder: Path, name: str, url: str, *, agents: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    guard(folder, name, agents=agents)
    note_url(folder, url)
    write_private(folder / FILE, _HEAD + accounts_of(folder) + "\n")
