//! Paper 001: TCP streams through Linux's IPsec, host to host.

use super::item::{How, Item, Paper, printed};

const PAPER: Paper = Paper::LinuxIpsec;
/// What all of its figures need.
const STREAMS: &str = "TCP streams over message sizes between two hosts with a link of a set rate: testudo lab tcp has them on one machine, and takes too long for this report";
const TWO_HOSTS: &str = "two hosts with a link of 1 Gbit/s and the processor's time by state at both: testudo lab tcp has them on one machine, and takes too long for this report";

/// Its figures and tables.
pub(super) static ITEMS: [Item; 7] = [
    Item {
        paper: PAPER,
        name: "Table 1",
        title: "Testbed components",
        printed: &[],
        how: How::Drawing("it lists the paper's computers; this machine is described above"),
    },
    Item {
        paper: PAPER,
        name: "Figure 1",
        title: "IP and IPsec comparison, 10 Mbit/s link",
        printed: &[printed("throughput lost by tunnel mode, of transport mode", "3", "%")],
        how: How::Impossible(STREAMS),
    },
    Item {
        paper: PAPER,
        name: "Figure 2",
        title: "(P2, P4M) IP and IPsec comparison, 100 Mbit/s link",
        printed: &[printed("difference between transport and tunnel mode", "3-5", "%")],
        how: How::Impossible(STREAMS),
    },
    Item {
        paper: PAPER,
        name: "Figure 3",
        title: "(X1, X2) IP and IPsec comparison, 100 Mbit/s link",
        printed: &[printed("throughput lost by 3DES", "35-40", "Mbit/s")],
        how: How::Impossible(STREAMS),
    },
    Item {
        paper: PAPER,
        name: "Figure 4",
        title: "(X1, X2) IP and IPsec comparison, 1 Gbit/s link",
        printed: &[
            printed("confidentiality and integrity, at most", "300", "Mbit/s"),
            printed("plain IP fills the link with packets larger than", "256", "bytes"),
        ],
        how: How::Impossible(STREAMS),
    },
    Item {
        paper: PAPER,
        name: "Figure 5",
        title: "(X1, X2) CPU utilization, 1 Gbit/s link",
        printed: &[printed("CPU usage with IPsec", "100", "%")],
        how: How::Impossible(TWO_HOSTS),
    },
    Item {
        paper: PAPER,
        name: "Figure 6",
        title: "MTU contribution",
        printed: &[
            printed("AH with MD5 in tunnel mode, peak (as plain IP)", "985", "Mbit/s"),
            printed("ESP and AH combined, gain", "100", "Mbit/s"),
        ],
        how: How::Impossible(TWO_HOSTS),
    },
];
