"""A bidirectional LSTM over padding gives the states and gradients of packed sequences."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from edgedistill.students.bilstm import BidirectionalLSTM


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("lengths", [[5, 1, 7, 3], [4, 4], [1]])
def test_states_and_gradients_are_those_of_packed_sequences(layers: int, lengths: list[int]):
    torch.manual_seed(0)
    lstm, longest = BidirectionalLSTM(6, 5, layers), max(lengths)
    mask = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    tokens = torch.randn(len(lengths), longest, 6, requires_grad=True)

    def packed() -> tuple[torch.Tensor, torch.Tensor]:
        states, (final, _) = torch.nn.LSTM.forward(
            lstm, pack_padded_sequence(tokens, torch.tensor(lengths), True, False)
        )
        return pad_packed_sequence(states, batch_first=True)[0], torch.cat([final[-2], final[-1]], -1)

    found = []
    weights = torch.randn(len(lengths), longest, 10), torch.randn(len(lengths), 10)
    for embed in (packed, lambda: lstm(tokens, torch.tensor(lengths))):
        lstm.zero_grad()
        tokens.grad = None
        states, final = embed()
        states = states.masked_fill(~mask[:, :, None], 0)
        ((states * weights[0]).sum() + (final * weights[1]).sum()).backward()
        assert tokens.grad is not None
        found.append(
            [
                states.detach(),
                final.detach(),
                tokens.grad.clone(),
                *(p.grad.clone() for p in lstm.parameters() if p.grad is not None),
            ]
        )
    assert len(found[0]) == len(found[1]) == 3 + len(list(lstm.parameters()))
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6)
