"""Profiles of cards: where they come from, damaged ones, and as a build's device."""

import json
import pickle
from pathlib import Path

import pytest

import keyfold as kf
from tests.cudnn.planning import READ, build, product

CardProfile = kf.cudnn.CardProfile


def edited(change, name="a100"):
    """The text of a profile whose JSON was changed."""
    data = json.loads(CardProfile.named(name).to_json())
    change(data)
    return json.dumps(data)


def test_the_shipped_profiles_say_where_they_come_from():
    assert CardProfile.names() == ["a100", "l40s", "h100", "b200"]
    profiles = [CardProfile.named(name) for name in CardProfile.names()]
    assert all("public specifications" in profile.source for profile in profiles)
    assert len({profile.fingerprint for profile in profiles}) == 4


@pytest.mark.parametrize("name", CardProfile.names())
def test_a_profile_is_saved_and_read_as_it_is(name, tmp_path):
    profile = CardProfile.named(name.upper())
    assert profile.name == name
    profile.save(tmp_path / "card.json")
    assert CardProfile.from_file(tmp_path / "card.json") == profile
    assert CardProfile.from_file(str(tmp_path / "card.json")) == profile
    assert CardProfile.from_json(profile.to_json()) == profile
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert hash(profile) == hash(CardProfile.named(name))


@pytest.mark.parametrize("name", ["h10", "h1000", "H100x", "hopper", ""])
def test_an_unknown_name_is_refused_with_those_there_are(name):
    with pytest.raises(kf.InvalidValue, match="there are a100, l40s, h100, b200"):
        CardProfile.named(name)


def test_a_misspelt_name_has_a_hint():
    with pytest.raises(kf.InvalidValue, match=r'"h10".*mean.*h100'):
        CardProfile.named("h10")
    with pytest.raises(kf.DeviceError, match=r"libcudnn plans for a100, l40s, h100"):
        product().build(device="h10")


@pytest.mark.parametrize(
    "key",
    ["warpSize", "multiProcessorCount", "deviceVer", "maxSharedMemoryPerBlockOptin", "driverVer"],
)
def test_a_missing_property_is_named(key):
    text = edited(lambda data: data["properties"].pop(key))
    with pytest.raises(kf.InvalidValue, match=rf'profile "a100": its properties lack {key}'):
        CardProfile.from_json(text)


def test_all_missing_properties_are_named():
    text = edited(lambda data: data["properties"].clear())
    with pytest.raises(kf.InvalidValue, match=r"lack maxGridSize, maxBlockSize, .*driverVer"):
        CardProfile.from_json(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "EOF"),
        ("h100", "expected value"),
        ("[]", "invalid"),
        ("{}", "missing field `format`"),
        ("null", "invalid type: null"),
        ('{"format": 1', "EOF"),
        (edited(lambda data: data.update(format=2)), "has format 2, and this version reads 1"),
        (edited(lambda data: data.update(format="1")), "invalid type"),
        (edited(lambda data: data.update(format=-1)), "invalid value"),
        (edited(lambda data: data.update(name=7)), "invalid type"),
        (edited(lambda data: data.update(properties=[])), "invalid"),
        (edited(lambda data: data.update(properties=None)), "invalid type"),
        (edited(lambda data: data.update(colour="green")), "unknown field `colour`"),
        (edited(lambda data: data.pop("source")), "missing field `source`"),
        ("[" * 100_000, "the card profile"),
    ],
    ids=range(15),
)
def test_a_text_that_is_no_profile_is_refused(text, reason):
    with pytest.raises(kf.InvalidValue, match=rf"the card profile.*: .*{reason}|{reason}"):
        CardProfile.from_json(text)


def test_a_file_that_is_not_there_or_is_no_text_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        CardProfile.from_file(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        product().build(device=tmp_path / "none.json")
    for content in (b"\xff\xfe", b"", b"{}"):
        (tmp_path / "card.json").write_bytes(content)
        for ask in (CardProfile.from_file, lambda path: product().build(device=path)):
            with pytest.raises(kf.InvalidValue, match=r"^/.*/card.json: "):
                ask(tmp_path / "card.json")


def test_a_fingerprint_is_that_of_what_plans_depend_on():
    def fingerprint(key, value):
        text = edited(lambda data: data["properties"].update({key: value}))
        return CardProfile.from_json(text).fingerprint

    usual = CardProfile.named("a100").fingerprint
    for key in ("cudaDeviceId", "pciDeviceId", "driverVer"):
        assert fingerprint(key, 99) == usual
    for key in ("multiProcessorCount", "deviceVer", "l2CacheSize", "deviceName"):
        assert fingerprint(key, 99) != usual
    renamed = CardProfile.from_json(edited(lambda data: data.update(name="mine")))
    assert (renamed.name, renamed.fingerprint) == ("mine", usual)


def test_capture_takes_no_card_that_is_not_here():
    for device in ("cpu", "h100", CardProfile.named("h100")):
        with pytest.raises(
            kf.InvalidValue, match=r"capture\(\): the device is a card that is here"
        ):
            CardProfile.capture(device)


@pytest.mark.usefixtures("libcudnn")
def test_a_device_is_a_profile_its_name_its_file_or_a_path(folder, tmp_path):
    profile = CardProfile.named("a100")
    profile.save(tmp_path / "card.json")
    first = build(device="a100")
    devices = ["A100", profile, tmp_path / "card.json", str(tmp_path / "card.json")]
    for device in devices:
        plan = build(device=device)
        assert plan.steps == [f"{READ} {folder}", *first.steps]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.usefixtures("libcudnn")
def test_a_plan_for_a_card_that_is_not_here_says_so_when_it_is_called(no_folder):
    import numpy as np

    plan = build()
    arrays = {tensor: np.zeros(tensor.dim, np.float16) for tensor in plan.inputs}
    with pytest.raises(kf.NotSupported, match=r"for the card a100, of which .* profile alone"):
        plan(arrays)
    assert "a100" in plan.explain()


@pytest.mark.usefixtures("libcudnn")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("warpSize", "many"),
        ("warpSize", None),
        ("multiProcessorCount", "many"),
        ("multiProcessorCount", -1),
        ("deviceVer", []),
        ("deviceVer", 0),
        ("deviceVer", 99999),
        ("maxGridSize", 3),
        ("maxGridSize", [1]),
        ("totalGlobalMem", 1e300),
        ("l2CacheSize", {}),
    ],
)
def test_properties_of_other_types_are_errors_or_plans_and_end_no_process(key, value, no_folder):
    text = edited(lambda data: data["properties"].update({key: value}))
    profile = CardProfile.from_json(text)
    try:
        said = build(device=profile).engine
    except kf.Error as error:
        said = str(error)
    assert said.startswith("cuDNN ")
    assert build().engine == "cuDNN engine 7"


def test_the_profiles_folder_has_what_the_package_ships():
    shipped = Path(__file__).parents[2] / "crates" / "libcudnn" / "src" / "profiles"
    if not shipped.is_dir():
        pytest.skip("the sources of the crate aren't here")
    names = {path.stem for path in shipped.glob("*.json")}
    assert names == set(CardProfile.names())
    for path in shipped.glob("*.json"):
        assert CardProfile.from_file(path) == CardProfile.named(path.stem)
