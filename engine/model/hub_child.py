"""What asks the Hugging Face hub, as a process of its own: ``python -m engine.model.hub_child``.

``look ID REVISION`` tells commit, endpoint and files; ``fetch ID COMMIT FOLDER NAME ..`` fetches files. The
last line of its output is JSON; ``{"error": text}`` says what went wrong and what to do.
"""

from __future__ import annotations

import errno
import json
import sys
from typing import Any

TIMEOUT_S = 30.0


def look(id: str, revision: str) -> dict[str, Any]:
    from huggingface_hub import HfApi, constants

    info = HfApi().model_info(id, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    files = {
        file.rfilename: {"size": file.size or 0, "sha256": file.lfs.sha256 if file.lfs else None}
        for file in info.siblings or ()
    }
    return {"commit": info.sha, "endpoint": constants.ENDPOINT, "files": files}


def fetch(id: str, commit: str, folder: str, *names: str) -> dict[str, Any]:
    from huggingface_hub import snapshot_download

    snapshot_download(id, revision=commit, local_dir=folder, allow_patterns=list(names))
    return {}


def explain(error: Exception, id: str, revision: str) -> str:
    """What went wrong and what to do."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{id} is gated: ask for access on {hub}/{id}, then log in (hf auth login) or set HF_TOKEN "
            "to a token that may read it"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{id} has no revision {revision!r} on {hub}: see {hub}/{id}/refs for what there is"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no model {id}, or it is private: check the name; for a private one set HF_TOKEN"
    if _in_chain(error, errors.OfflineModeIsEnabled):
        return f"{id} is not here and HF_HUB_OFFLINE is set: unset it, or pull where there is a network"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {error}; free the space, or choose a folder with --to, and pull again"
    return (
        f"{hub} could not be asked for {id}: {type(error).__name__}: {error}; check the network and proxy, "
        "or set HF_ENDPOINT to a mirror, then pull again: it goes on where it broke off"
    )


def _in_chain(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


def main() -> int:
    what, id, revision, *rest = sys.argv[1:]
    try:
        answer = look(id, revision) if what == "look" else fetch(id, revision, *rest)
    except ImportError:
        answer = {"error": "huggingface_hub not installed: pip install 'headrace[engine]'"}
    except Exception as error:  # said to a person by the process that started this one
        answer = {"error": explain(error, id, revision)}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
