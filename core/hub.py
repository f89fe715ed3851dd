"""Publishing files on the Hugging Face hub in one commit, with huggingface_hub and its token (`hf auth login`, or HF_TOKEN)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.errors import UserError, need_modules

RepoType = Literal["model", "dataset", "space"]
# Licences that have an identifier on the hub.
_LICENCES = {
    *("apache-2.0", "mit", "gpl-3.0", "bsd-3-clause"),
    *("cc-by-4.0", "cc-by-nc-4.0", "cc-by-sa-4.0", "cc-by-nc-sa-4.0", "cc0-1.0"),
}


def licence_fields(licence: str | None) -> dict[str, str]:
    """The licence in a card's metadata: the hub's identifier, or `other` with the licence's name."""
    if not licence:
        return {}
    identifier = licence.strip().lower().replace(" ", "-")
    return {"license": identifier} if identifier in _LICENCES else {"license": "other", "license_name": licence}


@dataclass(frozen=True)
class Publication:
    """The files for one repository: path there → local file, or content."""

    repo: str
    kind: RepoType
    files: Mapping[str, Path | bytes]
    title: str
    """The commit's message."""

    def size(self, name: str) -> int:
        """Bytes of one of the files."""
        content = self.files[name]
        return content.stat().st_size if isinstance(content, Path) else len(content)


def publish(publication: Publication, private: bool) -> str:
    """Commit the files, in a new repository if need be; returns the commit's URL. Raises `UserError` if the hub refuses."""
    need_modules("huggingface_hub", purpose="publishing on the hub")
    import httpx
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [
        CommitOperationAdd(name, str(content) if isinstance(content, Path) else content)
        for name, content in publication.files.items()
    ]
    api = HfApi(library_name="esc-eval")
    sdk = "static" if publication.kind == "space" else None
    try:
        api.create_repo(publication.repo, repo_type=publication.kind, private=private, exist_ok=True, space_sdk=sdk)
        if private and not api.repo_info(publication.repo, repo_type=publication.kind).private:
            raise UserError(f"{publication.repo} exists already and is public: --private applies to new repositories only")
        commit = api.create_commit(publication.repo, operations, commit_message=publication.title, repo_type=publication.kind)
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
        hint = "OWNER/NAME names a repository; `hf auth login`, or HF_TOKEN, gives a token that may write"
        raise UserError(f"{publication.repo}: cannot write to the hub: {' '.join(str(error).split())[:300]} ({hint})") from None
    return str(commit.commit_url)
