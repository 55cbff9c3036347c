"""Models of the transformers package from configurations: random weights, nothing is fetched."""

import torch
import transformers
from torch import Tensor, nn

transformers.logging.set_verbosity_error()

NO_DROPOUT = {
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def token_inputs(vocabulary: int, batch: int, length: int) -> dict[str, Tensor]:
    tokens = torch.randint(3, vocabulary, (batch, length))
    return {"input_ids": tokens, "labels": tokens.clone()}


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.BertConfig(
        vocab_size=99,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=16,
        **NO_DROPOUT,
    )
    inputs = token_inputs(99, 3, 12)
    inputs["attention_mask"] = torch.ones(3, 12, dtype=torch.long)
    inputs["attention_mask"][0, 9:] = 0
    return transformers.BertForMaskedLM(config), inputs


def gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.GPT2Config(
        vocab_size=99,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=16,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=1,
    )
    return transformers.GPT2LMHeadModel(config), token_inputs(99, 3, 12)


def t5() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.T5Config(
        vocab_size=99,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        use_cache=False,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config), token_inputs(99, 3, 12)


def llama() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), token_inputs(99, 3, 12)


def mixtral() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.MixtralConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=16,
        sliding_window=None,
        use_cache=False,
    )
    model = transformers.MixtralForCausalLM(config)
    # The default, grouped_mm, has no float64 kernel.
    model.set_experts_implementation("batched_mm")
    return model, token_inputs(99, 3, 12)


def bert_base(batch: int = 4, length: int = 128) -> tuple[nn.Module, dict[str, Tensor]]:
    """BERT-base on the current default device: use `with torch.device("meta")`."""
    config = transformers.BertConfig(**NO_DROPOUT)
    return transformers.BertForMaskedLM(config), token_inputs(config.vocab_size, batch, length)


def llama_70b(batch: int = 1, length: int = 2048) -> tuple[nn.Module, dict[str, Tensor]]:
    """The shape of Llama-70B, always on meta, in bfloat16."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        use_cache=False,
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        inputs = token_inputs(config.vocab_size, batch, length)
    return model, inputs
