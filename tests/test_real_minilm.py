"""all-MiniLM-L6-v2 from its own folder: integers beside PyTorch on 30 sentences, and one set of bits on every engine and board."""

from __future__ import annotations

import os

import numpy as np
import pytest
from boards import require
from real_models import minilm_folder

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="PyTorch computes what to compare with; CI has it")
    pytest.importorskip("transformers", reason="transformers computes what to compare with; CI has it")
import torch
import transformers

import edgepos
from edgepos import targets
from edgepos.report.embedding import figures

DIGESTS = {"w8g32": "6dd84842c5730e40", "w8": "3e5596bbbaa3dcf8", "w8g32 a8g32": "3a596ac62176f608"}  # of the self-test: never change within arithmetic version 1
SENTENCES = """
A man is playing a guitar on the street corner.
Someone plays an instrument outdoors for the people who pass.
The stock market fell sharply after the interest rate decision.
Investors sold shares when the central bank raised rates.
How do I reset the password of my account?
I forgot my login details and cannot sign in any more.
The recipe needs two eggs, flour, butter and a little salt.
To bake this cake, mix the eggs with the flour first.
It rained all day, so the match was called off.
The game did not take place because of bad weather.
Quantum computers use qubits, which can be in a superposition of states.
She adopted a small grey cat from the shelter.
Our dog barks at the postman every single morning!
The train to Vienna leaves from platform 7 at 10:45.
Where can I buy a ticket for the night bus?
Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.
def add(a, b): return a + b  # adds two numbers
SELECT name, price FROM products WHERE price < 20 ORDER BY price;
Der schnelle braune Fuchs springt über den faulen Hund.
Le café était fermé, alors nous sommes rentrés chez nous.
東京は日本の首都です。
Привет, как дела?
The patient was given 250 mg of the drug twice a day for ten days.
Climate change is melting the glaciers of the Alps faster than expected.
Thanks!
No.
www.example.org/path?query=1&page=2 returned error 404
😀 That was so funny, I could not stop laughing 😂
In 1969 Neil Armstrong became the first human being to walk on the surface of the Moon, while Michael Collins stayed in orbit.
The committee, whose members had been chosen by lot from among the citizens of the twelve districts, met every second Tuesday of the month in the old town hall, discussed the petitions that had been handed in since its last session, heard the witnesses it had called, and published, after a vote that was always secret, a short opinion which the mayor was free to follow or to ignore.
""".strip().splitlines()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Bundle of a weight format, exported once."""
    made = {}

    def get(name: str):
        if name not in made:
            weights, activations = name.split() if " " in name else (name, "a16")
            folder = tmp_path_factory.mktemp("minilm") / "model.edgepos"
            made[name] = edgepos.export_bundle(minilm_folder(), folder, weights=weights, activations=activations)
        return made[name]

    return get


@pytest.fixture(scope="module")
def exact():
    """(ids of the library's tokenizer, PyTorch's embeddings float64 [30, 384]): the mean of all tokens over its length."""
    folder = minilm_folder()
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(folder), transformers.BertModel.from_pretrained(folder).eval()
    ids, rows = [], []
    for sentence in SENTENCES:
        tokens = tokenizer(sentence, truncation=True, max_length=256, return_tensors="pt")
        ids.append(tokens["input_ids"][0].tolist())
        with torch.no_grad():
            row = model(**tokens).last_hidden_state[0].double().mean(dim=0)
        rows.append((row / row.norm()).numpy())
    assert len(rows) == 30
    return ids, np.array(rows)


# Sentences of one word are the hardest: nothing averages their tokens' errors out. One scale per row (w8) costs there.
@pytest.mark.parametrize("weights, mean, least, ranks", [("w8g32", 0.9998, 0.999, 0.9995), ("w8", 0.999, 0.994, 0.998), ("w8g32 a8g32", 0.9994, 0.9965, 0.998)])
def test_integers_are_close_to_pytorch(weights, mean, least, ranks, exported, exact):
    bundle, (ids, want) = exported(weights), exact
    assert [bundle.tokenizer.encode(sentence) for sentence in SENTENCES] == ids
    session = bundle.session()
    rows = np.array([session.embed(row) for row in ids], np.float64)
    np.testing.assert_array_equal(bundle.embed(SENTENCES), rows.astype(np.float32))
    found = figures(want, rows)
    assert found["cosine_mean"] >= mean and found["cosine_min"] >= least, found
    assert found["rank_correlation"] > ranks and found["nearest_agreement"] == 1 and session.saturations == 0, found


def test_the_float_graph_is_pytorch(exact):
    session = edgepos.reference(minilm_folder())
    np.testing.assert_allclose([session.embed(row) for row in exact[0]], exact[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("weights", DIGESTS)
def test_bits_are_the_same_in_all_engines(weights, exported, exact):
    bundle = exported(weights)
    assert bundle.selftest() == DIGESTS[weights]
    sessions = [bundle.session(engine="golden"), bundle.session(threads=2)]
    for row in (exact[0][0], exact[0][25], exact[0][29]):
        want = bundle.session().embed_int(row)
        for session in sessions:
            np.testing.assert_array_equal(session.embed_int(row), want)


@pytest.mark.parametrize("name", ["qemu:aarch64", "qemu:armv7"])
def test_boards_compute_the_digest(name, exported):
    board = targets.board(name)
    require(*board.needs())
    assert DIGESTS["w8g32"] in targets.verify(exported("w8g32"), board)


def test_a_text_longer_than_the_model_takes_is_cut(exported):
    bundle = exported("w8g32")
    assert bundle.context == 256 and bundle.embed([" ".join(SENTENCES) * 3]).shape == (1, 384)
