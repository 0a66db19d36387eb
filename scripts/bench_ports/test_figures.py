"""What is read from programs' output, and what follows: `python3 scripts/bench_ports/test_figures.py`."""

import unittest

import figures

PERIODS = "".join(
    f"""
  ######################## NIC statistics for port 1  ########################
  RX-packets: 0          RX-missed: 0          RX-bytes:  0
  Throughput (since last show)
  Rx-pps:            0          Rx-bps:            0
  Tx-pps:     {sent}          Tx-bps:   3105258352
  ######################## NIC statistics for port 2  ########################
  Rx-pps:     {came}          Rx-bps:            0
  Tx-pps:            0          Tx-bps:            0
""" for sent, came in [(0, 0), (10, 5), (1000, 900), (1020, 940), (3000, 920)])
END = """
  ---------------------- Forward statistics for port 0  ----------------------
  RX-packets: 18316416       RX-dropped: 0             RX-total: 18316416
  TX-packets: 7              TX-dropped: 0             TX-total: 7
  ---------------------- Forward statistics for port 1  ----------------------
  TX-packets: 2065120        TX-dropped: 16251296      TX-total: 18316416
  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++
  TX-packets: 4125504        TX-dropped: 16251296      TX-total: 20376800
"""


def status(sent, elapsed_ns, packets, receive, transmit):
    ticks = {"receive": receive, "parse": packets * 10, "transmit": transmit}
    return {"ports": {"unprotected": {"tx_packets": sent}},
            "stages": {"clock": {"elapsed_ns": elapsed_ns}, "outbound": {"packets": packets, "ticks": ticks}}}


# As testpmd prints it over memif, whose sockets are there by then, until its last port starts.
BEFORE_ITS_PORTS = """EAL: Detected CPU lcores: 2
EAL: Selected IOVA mode 'VA'
Auto-start selected
testpmd: create a new mbuf pool <mb_pool_0>: n=16384, size=2176, socket=0
testpmd: preferred mempool ops selected: ring_mp_mc
Configuring Port 0 (socket 0)
Port 0: 5A:0F:21:3C:5B:01
Configuring Port 1 (socket 0)
"""


class Starting(unittest.TestCase):
    def test_a_client_of_memif_waits_for_all_ports_and_not_for_the_first_one_or_for_sockets(self):
        self.assertFalse(figures.ports_have_started(BEFORE_ITS_PORTS))
        after = "Port 1: 5A:0F:21:3C:5B:02\nChecking link statuses...\n"
        self.assertTrue(figures.ports_have_started(BEFORE_ITS_PORTS + after))
        # ipsec-secgw.
        self.assertTrue(figures.ports_have_started("\nChecking link status...."))


class Reading(unittest.TestCase):
    def test_rates_of_testpmd_are_of_the_port_and_the_direction_asked_for(self):
        self.assertEqual(figures.testpmd_rates(PERIODS, 1, "T"), [0, 10, 1000, 1020, 3000])
        self.assertEqual(figures.testpmd_rates(PERIODS, 2, "R"), [0, 5, 900, 940, 920])
        self.assertEqual(figures.testpmd_rates(PERIODS, 3, "R"), [])

    def test_what_testpmd_offered_is_of_the_port_and_not_of_all(self):
        self.assertEqual(figures.testpmd_offered(END, 1), (2065120, 16251296))
        self.assertEqual(figures.testpmd_offered(END, 0), (7, 0))
        with self.assertRaises(figures.NoFigure):
            figures.testpmd_offered(PERIODS, 1)

    def test_rates_of_secgw_are_differences_of_its_counts(self):
        text = "Total packets sent:           100\nTotal packets dropped: 7\nTotal packets sent:           350\n"
        self.assertEqual(figures.secgw_rates(text + "Total packets sent:  400\n"), [250, 50])

    def test_the_start_does_not_count(self):
        self.assertEqual(figures.steady([0, 10, 1000, 1020, 3000]), 1020)
        for nothing in ([], [5, 6], [5, 6, 0, 0]):
            with self.assertRaises(figures.NoFigure):
                figures.steady(nothing)

    def test_a_gateway_is_measured_between_two_readings(self):
        found = figures.gateway_figures(status(1000, 5_000_000_000, 100, 4000, 1000),
                                        status(4000, 7_000_000_000, 300, 14000, 7000))
        self.assertEqual(found["packets_per_second"], 1500)
        self.assertEqual((found["receive"], found["transmit"], found["cycles_per_packet"]), (50, 30, 90))
        with self.assertRaises(figures.NoFigure):
            figures.gateway_figures(status(5, 1, 1, 1, 1), status(5, 2, 1, 1, 1))


class Arithmetic(unittest.TestCase):
    def test_rows_have_the_keys_that_are_promised_and_null_for_what_was_not_measured(self):
        row = figures.row("memif", 64, own=[3, 1, 2], bare=[4, 5], cycles=[10, 20])
        self.assertEqual(row, {"port": "memif", "frame_bytes": 64, "packets_per_second": 2, "peer_packets_per_second": None,
                               "bare_packets_per_second": 4, "cycles_per_packet": 15})

    def test_ratios_are_of_one_turn(self):
        self.assertEqual(figures.ratios([4, 9], [2, 3]), [2, 3])
        self.assertEqual(figures.spread([2, 3, 7]), "3.00 (2.00-7.00)")
        self.assertEqual(figures.spread([]), "-")

    def test_the_generator_is_the_limit_where_nearly_all_is_taken(self):
        self.assertTrue(figures.is_bound_by_generator(99, 1000, dropped=5))
        self.assertFalse(figures.is_bound_by_generator(99, 1000, dropped=500))
        self.assertTrue(figures.is_bound_by_generator(980, 1000, None))
        self.assertFalse(figures.is_bound_by_generator(500, 1000, None))


if __name__ == "__main__":
    unittest.main()
