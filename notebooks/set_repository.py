"""Point the Colab badges, the set-up cells and the README at a fork.

python notebooks/set_repository.py [OWNER/REPO] [--branch BRANCH] [--check]: without
OWNER/REPO, the GitHub repository of the git remote `origin`; --check changes nothing.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter

from record import REPOSITORY, source_hash

SLUG = r"\w[\w-]*/[\w.-]+"
BRANCH = r"\w[\w./%-]*"
SHAPES = (  # the project's own links: before OWNER/REPO, before the branch, and after
    (r"https://colab\.research\.google\.com/github/", "/blob/", r"/notebooks/\d\d_"),
    (r"https://github\.com/", "/archive/refs/heads/", r"\.zip"),
    (r"https://mybinder\.org/v2/gh/", "/", r"\?\w+path="),
    (r"git clone (?:-\S+ )*https://github\.com/", "", r"(?:\.git)?(?!\.?\w|-)"),
    (r"https://github\.com/", "", r"/actions/workflows/ci\.yml"),
)
LINKS = [
    re.compile(
        f"(?a)(?P<site>{site})(?P<repository>{SLUG}?)(?P<path>{path})"
        f"(?P<branch>{BRANCH + '?' if path else ''})(?={after})"
    )
    for site, path, after in SHAPES
]


def main(argv=None, root=REPOSITORY):
    """Rewrite the links, or check them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository", nargs="?", metavar="OWNER/REPO")
    parser.add_argument("--branch", help="default: each link keeps its branch")
    parser.add_argument("--check", action="store_true", help="fail where links differ")
    options = parser.parse_args(argv)
    for value, form, accepted in (
        (options.repository, rf"{SLUG}(?<!\.git)", "of the form OWNER/REPO"),
        (options.branch, BRANCH, "a branch name of letters, digits and . _ / -"),
    ):
        if value is not None and not re.fullmatch(form, value, re.ASCII):
            parser.error(f"{value!r} is not {accepted}")
    paths = [root / "README.md", *sorted((root / "notebooks").glob("*.ipynb"))]
    texts = {path: path.read_bytes().decode() for path in paths if path.exists()}
    find = most_named if options.check else origin
    repository = options.repository or find(root, texts)
    status = 0
    for path, text in texts.items():
        new_text = rewrite(path, text, repository, options.branch)
        if new_text == text:
            continue
        verb = "has a link that does not name" if options.check else "now names"
        print(path.relative_to(root).as_posix(), verb, repository, options.branch or "")
        if options.check:
            status = 1
        else:
            path.write_bytes(new_text.encode())
    return status


def origin(root, _):
    """Return the OWNER/REPO of the git remote `origin`."""
    command = ["git", "-C", str(root), "remote", "get-url", "origin"]
    answer = subprocess.run(command, capture_output=True, text=True).stdout
    url = re.sub("//[^/@]*@", "//", answer.strip())  # keeps a token out of the message
    site = r"(?:(?:https|ssh)://|git@)github\.com[:/]"
    if match := re.fullmatch(rf"{site}({SLUG}?)(?:\.git)?/?", url, re.ASCII):
        return match[1]
    sys.exit(f"The git remote origin is {url!r}, not one on GitHub: name OWNER/REPO.")


def most_named(_, texts):
    """Return the OWNER/REPO that most of the project's links name."""
    text = "\n".join(texts.values())
    found = [link["repository"] for form in LINKS for link in form.finditer(text)]
    if not found:
        sys.exit("Neither the README nor a notebook has a link to check.")
    return Counter(found).most_common(1)[0][0]


def rewrite(path, text, *target):
    """Return a file's text with the project's links pointing at the target."""
    if path.suffix != ".ipynb":
        return replace_links(text, *target)
    notebook = json.loads(text)
    prose = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in prose + code[:1]:  # what a later cell downloads is part of its lesson
        source = "".join(cell["source"])
        new_source = replace_links(source, *target)
        if new_source != source:
            fresh = cell["metadata"].get("source_sha256") == source_hash(cell)
            cell["source"] = new_source.splitlines(keepends=True)
            if fresh:
                cell["metadata"]["source_sha256"] = source_hash(cell)
    if notebook == json.loads(text):
        return text
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def replace_links(text, repository, branch):
    """Return the text with the project's links pointing at a repository and branch."""

    def new_link(link):
        new_branch = (branch or link["branch"]) if link["path"] else ""
        if "mybinder" in link["site"]:
            new_branch = new_branch.replace("/", "%2F")  # a slash would end it there
        return link["site"] + repository + link["path"] + new_branch

    for form in LINKS:
        text = form.sub(new_link, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
