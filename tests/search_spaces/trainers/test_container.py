"""``trainer.container``: an image's name, or a record; its mistakes, and what it does not see."""

from __future__ import annotations

from pathlib import Path

import pytest

from search_spaces import SearchSpace, SpaceError, load_space, notes

SPACE = """\
version: 1
cluster: dgx_h100
trainer:
  command: [python, "{script}", --data=/usr/share]
  {container}
parameters: {{mbs: [1, 2]}}
objective: {{maximize: samples_per_second}}
"""


def load(folder: Path, container: str, script: str = "/opt/train.py") -> SearchSpace:
    (folder / "space.yaml").write_text(SPACE.format(container=container, script=script))
    return load_space(folder / "space.yaml")


def test_an_image_alone_is_a_container_without_mounts(tmp_path: Path) -> None:
    alone = load(tmp_path, "container: 'nvcr.io#nvidia/pytorch:25.04-py3'")
    whole = load(tmp_path, "container: {image: 'docker://nvcr.io/nvidia/pytorch:25.04-py3'}")
    assert alone.trainer.container == whole.trainer.container
    assert alone.trainer.container is not None
    assert alone.trainer.container.image == "nvcr.io/nvidia/pytorch:25.04-py3"
    assert alone.fingerprint == whole.fingerprint
    (tmp_path / "frozen.yaml").write_text(alone.frozen())
    again = load_space(tmp_path / "frozen.yaml", frozen=True)
    assert again.trainer == alone.trainer and again.fingerprint == alone.fingerprint


def test_an_image_beside_the_space_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "ngc.sqsh").touch()
    container = load(tmp_path, "container: ngc.sqsh").trainer.container
    assert container is not None and container.image == str(tmp_path / "ngc.sqsh")


@pytest.mark.parametrize(
    ("container", "place", "accepted"),
    [
        ("container: none.sqsh", "5:3", "there is no "),
        ("container: ''", "5:14", "text that is not empty"),
        ("container: $HOME/a.sqsh", "5:14", "no shell replaces"),
        ("container: {image: a, mount: [/x]}", "5:25", "did you mean 'mounts'"),
        ("container: {image: a, mounts: [x:/x]}", "5:34", "SOURCE:TARGET"),
        ("container: {image: a, mounts: ['/x:/y:rx']}", "5:34", "SOURCE:TARGET:ro"),
        ("container: {image: a, mounts: ['~/x']}", "5:34", "no shell replaces"),
        ("container: {mounts: [/x]}", "5:3", "'image' is missing"),
        ("container: [a]", "5:14", "accepted"),
    ],
)
def test_a_mistake_is_told_by_its_place(
    tmp_path: Path, container: str, place: str, accepted: str
) -> None:
    with pytest.raises(SpaceError, match=rf"space\.yaml:{place}: .*{accepted}"):
        load(tmp_path, container)


def test_the_built_in_trainer_has_no_container(tmp_path: Path) -> None:
    text = SPACE.format(container="container: a", script="x").replace(
        'command: [python, "x", --data=/usr/share]', "builtin: {data: python-source}"
    )
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(SpaceError, match="'container' goes with a trainer of your own"):
        load_space(tmp_path / "space.yaml")


def test_paths_that_the_container_does_not_see_are_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    script = str(tmp_path / "train.py")
    told = [note for note in notes(load(tmp_path, "container: a", script)) if "see" in note]
    assert ["train.py" in told[0], "/usr/share" in told[1]] == [True, True]
    mounts = f"container: {{image: a, mounts: ['{tmp_path}:/code', /usr]}}"
    told = [note for note in notes(load(tmp_path, mounts, script)) if "see" in note]
    assert len(told) == 1  # it is at another path inside
    mounts = f"container: {{image: a, mounts: [{tmp_path}, /usr]}}"
    assert not any("see" in note for note in notes(load(tmp_path, mounts, script)))
    # What is not here may be in the image.
    assert not any("/opt" in note for note in notes(load(tmp_path, "container: a")))


def test_a_working_folder_may_be_in_the_image_alone(tmp_path: Path) -> None:
    space = load(tmp_path, "container: a\n  workdir: /workspace/nowhere")
    assert space.workdir == Path("/workspace/nowhere")
