"""The replay window and the inference of ESN's high half, written down from RFC 4303 3.4.3 and its appendix A2.

Slow and plain on purpose: it is what the gateway's window is compared with.
"""

HALF = 1 << 32


class Window:
    def __init__(self, size, esn):
        self.size, self.esn = size, esn
        self.top = 0
        self.seen = set()

    def infer(self, low):
        """The whole number behind the low half that a packet carries (A2.2)."""
        if not self.esn:
            return low
        top_high, top_low = divmod(self.top, HALF)
        bottom_low = (top_low - self.size + 1) % HALF
        if top_low >= self.size - 1:  # case A: the window lies in one subspace
            high = top_high if low >= bottom_low else top_high + 1
        else:  # case B: it spans two
            high = top_high - 1 if low >= bottom_low else top_high
        # Below the first subspace there is none: the number can only be of the first one.
        return max(high, 0) * HALF + low

    def refusal(self, number):
        """Why a number is refused before its packet is looked at; None if it is not."""
        if number == 0 or number <= self.top - self.size:
            return "replay_too_old"
        return "replay_duplicate" if number in self.seen else None

    def accept(self, number):
        self.top = max(self.top, number)
        self.seen.add(number)
