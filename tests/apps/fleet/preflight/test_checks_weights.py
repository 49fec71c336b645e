"""The preflight checks of weights on recorded outputs: what is seen, and the command that mends it."""

from __future__ import annotations

from dataclasses import replace

from tests.apps.fleet.preflight.spark import DS4, QWEN, Spark, is_mended, one


def test_weights_that_were_never_downloaded(spark: Spark) -> None:
    other = replace(QWEN, models=("org/other",))
    check = one(spark.seen("weights", other))
    is_mended(check, "warn", "the first start downloads them; 838.2 GiB of disk are free", "hf download org/other")
    assert check.mend == "hf download org/other --cache-dir /home/user/.cache/huggingface/hub"
    offline = one(spark.seen("weights", replace(other, env={"HF_HUB_OFFLINE": "1"})))
    is_mended(offline, "fail", "may not download", "hf download org/other")


def test_weights_of_which_a_part_is_missing(spark: Spark) -> None:
    folder = spark.root / "home/user/models/DeepSeek-V4-Flash"
    (folder / "model-00007-of-00046.safetensors").unlink()
    (folder / "model-00009-of-00046.safetensors").write_text("")
    check = one(spark.seen("weights", DS4))
    is_mended(check, "fail", "model-00009-of-00046.safetensors, model-00007-of-00046.safetensors", "ls -la /home/user")


def test_weights_that_no_volume_holds(spark: Spark) -> None:
    is_mended(one(spark.seen("weights", replace(QWEN, volumes=()))), "warn", "no volume holds", "launch.volumes")


def test_the_draft_model_is_looked_for_too(spark: Spark) -> None:
    checks = spark.seen("weights", replace(QWEN, models=(*QWEN.models, "google/gemma-assistant")))
    assert [check.verdict for check in checks] == ["ok", "warn"]


def test_a_home_in_a_volume_is_the_homes_of_the_user_there(spark: Spark) -> None:
    spark.weights("/home/user/vllm/hub/models--a--b/snapshots/1", 1)
    for home in ("~/vllm", "$HOME/vllm", "${HOME}/vllm"):
        backend = replace(QWEN, models=("a/b",), volumes=(f"{home}:/models",), env={"HF_HOME": "/models"})
        assert one(spark.seen("weights", backend)).verdict == "ok"


def test_a_folder_without_a_beginning_ends_the_look_for_its_disk(spark: Spark) -> None:
    assert one(spark.seen("weights", replace(QWEN, image=None, env={"HF_HUB_CACHE": "models"}))).verdict == "warn"


def test_a_disk_that_is_nearly_full(spark: Spark) -> None:
    spark.answers["df -P"] = "Filesystem x\n/dev/nvme 4 3 1000000000 99% /\n"
    is_mended(one(spark.seen("weights")), "warn", "0.9 GiB of disk are free", "docker image prune")


def test_weights_that_are_missing_and_have_no_room_keep_it_from_starting(spark: Spark) -> None:
    other = replace(QWEN, models=("org/other",))
    df = "Filesystem 1-blocks Used Available Capacity Mounted on\n/dev/nvme0n1p2 4e12 4e12 {} 100% /\n"
    spark.answers["df -P"] = df.format(0)
    is_mended(one(spark.seen("weights", other)), "fail", "and 0.0 GiB of disk are free", "docker image prune")
    spark.answers["df -P"] = df.format(30 * 1024**3)
    assert one(spark.seen("weights", other)).verdict == "warn", "nobody knows how large they are"
    assert one(spark.seen("weights", replace(other, weights=40 * 1024**3))).verdict == "fail"
