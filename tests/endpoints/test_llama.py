from __future__ import annotations

import builtins
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from localreact.decoding import backend
from localreact.decoding.model import Model
from localreact.endpoints.base import whole
from localreact.endpoints.cards import cards
from localreact.endpoints.chat import from_template
from localreact.endpoints.llama import LlamaEndpoint, fingerprint
from localreact.endpoints.resolve import open_endpoint
from localreact.engines.free import cut_at_stop
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.errors import GrammarError, LocalReactError, MissingPartError, ModelError, UsageError
from localreact.protocols import PROTOCOLS, protocol
from localreact.types import Limits, Prompt, Sampling, Segment, TurnGrammar, TurnSpec
from tests.specs import one_string
from tests.tiny import write_tiny_gguf


def test_a_missing_model_is_named_with_what_to_do() -> None:
    with pytest.raises(MissingPartError, match=r"no model 'nothing.gguf'.*\n.*smollm2"):
        open_endpoint("nothing.gguf")


def test_a_truncated_file_is_an_error(tiny_gguf: Path, tmp_path: Path) -> None:
    for size in (5, 1000, 60_000):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(tiny_gguf.read_bytes()[:size])
        with pytest.raises(ModelError, match="can't be loaded"):
            LlamaEndpoint(cut)


def test_a_text_file_named_gguf_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.gguf"
    path.write_text("Not a model.")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        LlamaEndpoint(path)


def test_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        LlamaEndpoint(tmp_path)


def test_without_llama_cpp_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    backend.load.cache_clear()
    try:
        with pytest.raises(MissingPartError, match=r"pip install 'localreact\[local\]'"):
            backend.load()
    finally:
        monkeypatch.undo()
        backend.load.cache_clear()


def test_without_a_gpu_the_cpu_evaluates_all_layers_and_a_notice_names_the_fix(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = backend.load()
    monkeypatch.setattr(llama, "llama_supports_gpu_offload", lambda: False)
    monkeypatch.setattr(sys, "platform", "linux")
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1, gpu_layers=-1)
    assert endpoint.model.gpu_layers == 0
    assert any("finds no GPU" in each and "-DGGML_CUDA=on" in each for each in endpoint.notices)
    writing = endpoint.complete(
        Prompt((Segment("hello"),)), protocol("json").grammar(TurnSpec(), "lark"), Limits(60), Sampling()
    )
    assert list(writing)
    endpoint.close()
    plain = LlamaEndpoint(tiny_gguf, n_threads=1)
    assert not any("GPU" in each for each in plain.notices)
    plain.close()


@pytest.mark.parametrize(("layers", "told"), [(-1, 2**31 - 1), (3, 3), (0, 0)])
def test_layers_for_the_gpu_are_passed_on_and_keep_their_prefixes_apart(
    layers: int, told: int, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = backend.load()
    asked = []

    def load(path: bytes, parameters: Any) -> Any:
        asked.append(parameters.n_gpu_layers)
        return real_load(path, parameters)

    def make(model: Any, parameters: Any) -> Any:
        asked.append((parameters.offload_kqv, parameters.op_offload))
        return real_make(model, parameters)

    real_load, real_make = llama.llama_model_load_from_file, llama.llama_init_from_model
    monkeypatch.setattr(llama, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(llama, "llama_model_load_from_file", load)
    monkeypatch.setattr(llama, "llama_init_from_model", make)
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1, gpu_layers=layers)
    assert asked == [told, (layers != 0, layers != 0)]  # memory and long prompts go where the layers are
    assert f"gpu={layers}" in endpoint._context.settings  # of which the key of kept prefixes is made
    assert not any("GPU" in each for each in endpoint.notices)
    endpoint.close()


def test_layers_that_are_none_and_those_of_a_server_are_errors(tiny_gguf: Path) -> None:
    with pytest.raises(UsageError, match="all \\(-1\\), not -2"):
        LlamaEndpoint(tiny_gguf, gpu_layers=-2)
    with pytest.raises(UsageError, match="for models in process"):
        open_endpoint("tgi:http://127.0.0.1:9", gpu_layers=-1)


def test_a_llama_cpp_that_is_broken_is_told_with_how_to_build_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str, *rest: Any) -> Any:
        if name == "llama_cpp":
            raise RuntimeError("Failed to load shared library: invalid ELF header")
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.delitem(sys.modules, "llama_cpp")
    monkeypatch.setattr(builtins, "__import__", broken)
    backend.load.cache_clear()
    try:
        with pytest.raises(MissingPartError, match=r"invalid ELF header(.|\n)*--force-reinstall"):
            backend.load()
    finally:
        monkeypatch.undo()
        backend.load.cache_clear()


@pytest.mark.parametrize(
    ("platform", "fix"),
    [("linux", "build-essential"), ("darwin", "xcode-select"), ("win32", "Visual Studio")],
)
def test_what_is_missing_is_told_for_the_platform(
    platform: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setattr(sys, "platform", platform)
    backend.load.cache_clear()
    try:
        with pytest.raises(MissingPartError, match=fix):
            backend.load()
    finally:
        monkeypatch.undo()
        backend.load.cache_clear()


def test_the_card_and_the_file_have_the_same_chat_format(smollm2: LlamaEndpoint) -> None:
    assert from_template(smollm2.card.chat_template) == smollm2.chat


def test_a_model_without_a_chat_template_gets_a_plain_transcript_and_one_notice(tmp_path: Path) -> None:
    endpoint = LlamaEndpoint(write_tiny_gguf(tmp_path / "bare.gguf"))
    assert endpoint.chat.name == "plain transcript"
    assert len(endpoint.notices) == 1
    assert "plain transcript" in endpoint.notices[0]
    endpoint.close()


def test_a_hostile_template_is_not_run(tmp_path: Path) -> None:
    template = "{{ ''.__class__.__base__.__subclasses__() }}"
    endpoint = LlamaEndpoint(write_tiny_gguf(tmp_path / "hostile.gguf", chat_template=template))
    assert endpoint.chat.name == "plain transcript"
    assert "can't be used" in endpoint.notices[0]
    endpoint.close()


def test_an_unknown_engine_or_an_empty_context_is_refused(tiny_gguf: Path) -> None:
    with pytest.raises(UsageError, match="no engine 'magic'"):
        LlamaEndpoint(tiny_gguf, engine="magic")
    with pytest.raises(UsageError, match="at least 1 token"):
        LlamaEndpoint(tiny_gguf, n_ctx=0)


def test_a_model_whose_engine_fails_is_freed(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    close = Model.close

    def counted(model: Model) -> None:
        freed.append(model)
        close(model)

    monkeypatch.setattr(Model, "close", counted)
    monkeypatch.setitem(sys.modules, "localreact.engines.outlines", None)
    with pytest.raises(ImportError):
        LlamaEndpoint(tiny_gguf, engine="outlines")
    assert [model.handle for model in freed] == [None]


def test_a_free_completion_is_cut_before_its_stop_string() -> None:
    assert cut_at_stop("a\nObservation: b", ("\nThought:", "\nObservation")) == "a"
    assert cut_at_stop("a", ("b",)) == "a"
    assert cut_at_stop("a", ()) == "a"


def test_every_card_is_whole() -> None:
    for card in cards().values():
        assert card.source
        assert card.licence
        assert len(card.sha256) == 64


def test_the_card_recognises_its_own_model_file(smollm2: LlamaEndpoint, tmp_path: Path) -> None:
    copy = tmp_path / "renamed.gguf"
    shutil.copy(cards()["smollm2"].path(), copy)
    endpoint = LlamaEndpoint(copy, n_ctx=256)
    assert endpoint.card == smollm2.card
    assert endpoint.name == "renamed.gguf"
    assert endpoint.fingerprint == smollm2.fingerprint
    endpoint.close()


def test_fingerprints_tell_files_apart(tmp_path: Path, tiny_gguf: Path) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=1)
    assert fingerprint(other) != fingerprint(tiny_gguf)


def test_a_grammar_that_does_not_compile_is_an_error_before_anything_is_decoded(tiny: LlamaEndpoint) -> None:
    broken = TurnGrammar("lark", 'start: "a" undefined_rule')
    with pytest.raises(GrammarError, match="can't be compiled"):
        next(tiny.complete(Prompt((Segment("x"),)), broken, Limits(5), Sampling()))


def test_no_grammar_means_no_decoding(tiny: LlamaEndpoint) -> None:
    with pytest.raises(GrammarError):
        next(tiny.complete(Prompt((Segment("x"),)), None, Limits(5), Sampling()))


@pytest.mark.parametrize("engine", ["llguidance", "gbnf", "free"])
def test_a_grammar_in_a_language_of_others_is_refused(tiny: LlamaEndpoint, engine: str) -> None:
    endpoint = tiny.with_engine(engine)
    for language, text in (("lark", 'start: "a"'), ("gbnf", 'root ::= "a"'), ("regex", "a")):
        if language in endpoint.languages:
            endpoint.check(TurnGrammar(language, text))
        else:
            with pytest.raises(GrammarError, match=language):
                endpoint.check(TurnGrammar(language, text))


def test_control_tokens_are_never_legal_inside_a_string(smollm2: LlamaEndpoint, tiny: LlamaEndpoint) -> None:
    grammar = TurnGrammar("lark", 'start: "\\"" /[^"]{0,100}/ "\\""')
    for endpoint in (smollm2, tiny):
        vocab = endpoint._model.vocab
        matcher = endpoint._start(grammar, ())
        matcher.accept(vocab.encode([Segment('"')]))
        legal = matcher.mask()
        for token in vocab.control | vocab.markers:
            assert not legal[token]
            assert not matcher.allows(token)


def test_a_grammar_is_compiled_once_and_every_turn_starts_at_its_beginning(tiny: LlamaEndpoint) -> None:
    grammar = TurnGrammar("lark", 'start: "x" ("y" | "z")')
    assert isinstance(tiny._engine, LLGuidanceEngine)
    compiled = tiny._engine._compiled
    before = compiled.cache_info().misses
    for _ in range(3):
        matcher = tiny._start(grammar, ())
        matcher.accept(tiny._model.vocab.encode([Segment("xy")]))
        assert matcher.done
    assert compiled.cache_info().misses == before + 1


def test_a_failed_lexer_is_not_kept_for_the_next_turn(tiny: LlamaEndpoint) -> None:
    grammar = TurnGrammar("lark", 'start: "failing" "x"')
    assert isinstance(tiny._engine, LLGuidanceEngine)
    matcher = tiny._start(grammar, ())
    assert tiny._engine._compiled.cache_info().currsize > 0
    with pytest.raises(GrammarError):
        matcher.accept(tiny._model.vocab.encode([Segment("zzz")]))
    assert tiny._engine._compiled.cache_info().currsize == 0


def test_a_fork_goes_its_own_way(tiny: LlamaEndpoint) -> None:
    matcher = tiny._start(TurnGrammar("lark", 'start: "a" ("b" | "c")'), ())
    vocab = tiny._model.vocab
    matcher.accept(vocab.encode([Segment("a")]))
    twin = matcher.fork()
    twin.accept(vocab.encode([Segment("b")]))
    assert twin.done
    assert not matcher.done
    with pytest.raises(GrammarError):
        matcher.accept(vocab.encode([Segment("x")]))


def test_errors_say_what_to_do_next() -> None:
    error = LocalReactError("it broke", "mend it")
    assert str(error) == "it broke\nmend it"


def test_llama_cpps_own_grammars_hold_a_turn(tiny_gguf: Path) -> None:
    endpoint = LlamaEndpoint(tiny_gguf, n_threads=1, engine="gbnf")
    try:
        assert endpoint.languages == ("gbnf",)
        spec = TurnSpec(tools=(one_string("echo", "text"),), thought_max=30, argument_max=20, answer_max=20)
        for name in PROTOCOLS:
            grammar, sampling = protocol(name).grammar(spec, "gbnf"), Sampling(temperature=1.0, seed=3)
            prompt = Prompt((Segment("Say hello."),))
            completion = whole(endpoint.complete(prompt, grammar, Limits(400), sampling))
            assert completion.stop in ("complete", "eog")
            protocol(name).parse(completion.text, spec.tools)  # raises unless it is one turn
            assert completion.usage.forced == 0
    finally:
        endpoint.close()
