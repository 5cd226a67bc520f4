"""``trionsq.policies.dat``: the policies that were made by HTTP. The original ignores the file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from trionsq.core.policies import Policy, PolicyError, parse_policy
from trionsq.disk import Disk, read_file, replace_file
from trionsq.storage.folder import reason_of
from trionsq.storage.metadata import MetadataError

__all__ = ["POLICIES_FILE", "load_policies", "save_policies"]

POLICIES_FILE: Final = "trionsq.policies.dat"
_FORMAT: Final = 1


def load_policies(disk: Disk) -> list[Policy]:
    """Return the policies of the file; none without one.

    Raises:
        MetadataError: the file cannot be read, or its content is not valid.
    """
    path = f"{disk.path}/{POLICIES_FILE}"
    try:
        content: object = json.loads(read_file(disk, POLICIES_FILE))
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise PolicyError(f"the format is not {_FORMAT}")
        policies: object = content.get("policies")
        if not isinstance(policies, dict):
            raise PolicyError("it has no policies")
        return [parse_policy(name, document) for name, document in policies.items()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MetadataError(f"failed to load policies - open {path}: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"failed to load policies - {path}: {error}") from error


def save_policies(disk: Disk, policies: Iterable[Policy]) -> None:
    """Replace the file. Blocks for fsyncs.

    Raises:
        OSError: the file may have its old content, or the new one may not be durable.
    """
    documents = {policy.name: policy.document() for policy in policies}
    text = json.dumps({"format": _FORMAT, "policies": documents})
    replace_file(disk, POLICIES_FILE, text.encode())
