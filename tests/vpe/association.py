#!/usr/bin/python3
"""The rules of docs/VPE.md for windows and senders, by the Scapy layer's association."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "contrib/scapy"))

from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.packet import Raw  # noqa: E402

import vpe  # noqa: E402

PACKET = IP(src="10.1.2.3", dst="10.4.5.6") / UDP(sport=1, dport=2) / Raw(b"payload")


def association(**options):
    return vpe.Association(0x1000, "aes128gcm16", bytes(16), **options)


class Rules(unittest.TestCase):
    def refused(self, reason, opener, packet, **options):
        with self.assertRaises(vpe.Refused) as raised:
            opener.open(packet, **options)
        self.assertEqual(raised.exception.reason, reason)

    def test_what_one_seals_the_other_opens_once(self):
        sealer, opener = association(), association()
        for window in (0, 1, 0xFFFF):
            for number in range(1, 5):
                packet = sealer.seal(PACKET, window)
                self.assertEqual((packet.window, packet.number), (window, number))
                self.assertEqual(bytes(opener.open(packet)), bytes(PACKET))
                self.refused("replayed", opener, packet)

    def test_windows_count_by_themselves(self):
        sealer, opener = association(), association(window_size=64)
        early = [sealer.seal(PACKET, window) for window in (0, 1)]
        for _ in range(100):
            opener.open(sealer.seal(PACKET, 0))
        self.refused("too_old", opener, early[0])
        self.assertEqual(bytes(opener.open(early[1])), bytes(PACKET))

    def test_every_changed_bit_is_noticed(self):
        packet = bytes(association().seal(PACKET, 7))
        for bit in range(8 * len(packet)):
            changed = bytearray(packet)
            changed[bit // 8] ^= 1 << bit % 8
            spi = 12 <= bit // 8 < 16
            self.refused("no_sa" if spi else "icv", association(), vpe.VPE(bytes(changed)))

    def test_the_number_zero_is_refused(self):
        self.refused("replayed", association(), association().seal(PACKET, number=0))

    def test_a_window_too_many_harms_no_other(self):
        sealer, opener = association(), association(windows_max=2)
        opener.open(sealer.seal(PACKET, 0)), opener.open(sealer.seal(PACKET, 1))
        self.refused("too_many_windows", opener, sealer.seal(PACKET, 2))
        opener.open(sealer.seal(PACKET, 0))

    def test_a_forged_packet_makes_no_window(self):
        opener = association(windows_max=1)
        forged = association().seal(PACKET, 9)
        forged.icv = bytes(16)
        self.refused("icv", opener, forged)
        opener.open(association().seal(PACKET, 0))

    def test_unicast_has_the_sender_zero(self):
        foreign = association(sender=5, multicast=True).seal(PACKET)
        self.refused("foreign_sender", association(), foreign)

    def test_senders_of_a_group_count_by_themselves(self):
        one, two, opener = (association(sender=sender, multicast=True) for sender in (1, 2, 3))
        for sealer in (one, two, one, two):
            opener.open(sealer.seal(PACKET))

    def test_who_hears_its_own_id_sends_no_more(self):
        twin, device = (association(sender=4, multicast=True) for _ in range(2))
        self.refused("own_sender", device, twin.seal(PACKET))
        with self.assertRaises(vpe.Refused):
            device.seal(PACKET)

    def test_what_was_sent_and_comes_back_silences_nobody(self):
        device = association(sender=4, multicast=True)
        sent = [device.seal(PACKET, window) for window in (0, 0, 3)]
        for packet in sent + [association(sender=4, multicast=True).seal(PACKET, 9)]:
            self.refused("own_sender", device, packet)
        device.seal(PACKET)
        twin = association(sender=4, multicast=True)
        self.refused("own_sender", device, twin.seal(PACKET, 3, number=2))
        with self.assertRaises(vpe.Refused):
            device.seal(PACKET)

    def test_a_group_has_no_sender_zero(self):
        nobody = association(sender=0, multicast=True).seal(PACKET)
        self.refused("foreign_sender", association(sender=4, multicast=True), nobody)

    def test_one_id_from_two_addresses_within_a_second_is_noticed(self):
        for seconds, noticed in ((0.9, True), (1.0, False)):
            now = [0.0]
            opener = association(sender=1, multicast=True, clock=lambda now=now: now[0])
            sealer = association(sender=2, multicast=True)
            opener.open(sealer.seal(PACKET), source="192.0.2.1")
            now[0] += seconds
            opener.open(sealer.seal(PACKET), source="192.0.2.2")
            self.assertEqual(2 in opener.duplicates, noticed)

    def test_padding_and_fill_packets(self):
        sealer, opener = association(), association()
        self.assertEqual(bytes(opener.open(sealer.seal(PACKET, padding=40))), bytes(PACKET))
        self.refused("fill", opener, sealer.fill(100))
        self.refused("fill", opener, sealer.fill(0))

    def test_numbers_end(self):
        sealer = association()
        sealer.next[0] = vpe.LAST_NUMBER
        self.assertEqual(sealer.seal(PACKET).number, vpe.LAST_NUMBER)
        with self.assertRaises(vpe.Refused):
            sealer.seal(PACKET)
        self.assertEqual(sealer.seal(PACKET, 1).number, 1)

    def test_the_layer_is_found_by_port_and_protocol(self):
        inner = association().seal(PACKET, 3)
        for outer in (IP() / UDP(sport=9, dport=vpe.PORT), IP(proto=vpe.PROTOCOL)):
            self.assertEqual(IP(bytes(outer / inner))[vpe.VPE].window, 3)


if __name__ == "__main__":
    unittest.main()
