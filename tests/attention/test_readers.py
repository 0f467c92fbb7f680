"""The recurrent encoder against PyTorch's packed sequences."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from causal_attn.attention.readers import CONSTANT, BiGRU, last_states, scale_of


def test_states_are_those_of_packed_sequences() -> None:
    torch.manual_seed(0)
    encoder, lengths = BiGRU(4, 3), torch.tensor([7, 2, 5])
    valid = torch.arange(7) < lengths[:, None]
    e = torch.randn(3, 7, 4)
    inputs = torch.cat([e, torch.full((3, 7, 1), CONSTANT)], -1)
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = pad_packed_sequence(encoder.gru(packed)[0], batch_first=True)
    states = encoder(e, valid.float())
    torch.testing.assert_close(states[valid], expected[valid], atol=1e-6, rtol=0)
    _, ends = encoder.gru(packed)
    torch.testing.assert_close(last_states(states, valid), ends.transpose(0, 1).flatten(1), atol=1e-6, rtol=0)


def test_uniform_attention_shows_words_as_they_are() -> None:
    valid = torch.tensor([[True, True, True, False], [True, False, False, False]])
    uniform = valid / valid.sum(-1, keepdim=True)
    assert torch.equal(scale_of(uniform, valid), valid.float())
