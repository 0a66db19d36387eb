//! What papers 000 (table I) and 002 (table 2) print, as they print it.

/// A column of table I of paper 000: a whole server at the wall, one core of which does the work.
pub(super) struct Energy {
    pub(super) name: &'static str,
    pub(super) watts: f64,
    pub(super) gbit_s: f64,
    /// Of one core at 3.3 GHz.
    pub(super) processor_share: f64,
    /// As printed, in mJ for each byte. By the paper's own watts and throughput it is 1,000 times less for
    /// each bit: 100 W at 1 Gbit/s are 0.1 µJ a bit, or 0.8 µJ a byte.
    pub(super) printed_mj_per_byte: f64,
    /// Cycles for each byte, in the words of section V-C: "about 3", and "10 to 20 times as many".
    pub(super) cycles_per_byte: &'static str,
}

impl Energy {
    /// What the paper's watts and throughput come to.
    pub(super) fn joules_per_byte(&self) -> f64 {
        self.watts / (self.gbit_s * 1e9 / 8.0)
    }
}

pub(super) const TABLE_I: [Energy; 3] = [
    Energy {
        name: "MoonGen",
        watts: 100.0,
        gbit_s: 1.0,
        processor_share: 0.2,
        printed_mj_per_byte: 0.1,
        cycles_per_byte: "3",
    },
    Energy {
        name: "Linux 3.16 (AES-NI)",
        watts: 108.0,
        gbit_s: 1.0,
        processor_share: 1.0,
        printed_mj_per_byte: 0.108,
        cycles_per_byte: "30 to 60",
    },
    Energy {
        name: "Linux 3.16",
        watts: 107.0,
        gbit_s: 0.48,
        processor_share: 1.0,
        printed_mj_per_byte: 0.208,
        cycles_per_byte: "30 to 60",
    },
];

/// A column of table 2 of paper 002. Prices are in US dollars of 2016; those of accelerators are of the chip
/// alone.
pub(super) struct System {
    pub(super) name: &'static str,
    pub(super) gbit_s: f64,
    pub(super) price: f64,
    pub(super) printed_mbit_s_per_dollar: f64,
    pub(super) watts: Option<f64>,
}

impl System {
    /// What a gigabit a second costs.
    pub(super) fn price_per_gbit_s(&self) -> f64 {
        self.price / self.gbit_s
    }
}

const fn system(name: &'static str, gbit_s: f64, price: f64, printed: f64, watts: Option<f64>) -> System {
    System { name, gbit_s, price, printed_mbit_s_per_dollar: printed, watts }
}

pub(super) const TABLE_2: [System; 9] = [
    system("PIPSEA, APU RX-421BD", 11.1, 100.0, 110.90, Some(35.0)),
    system("PIPSEA, FirePro S9100", 36.5, 2944.0, 12.40, Some(320.0)),
    system("PIPSEA, Radeon R9 Nano", 42.0, 1544.0, 27.20, Some(270.0)),
    system("Atom C2758, QAT", 7.9, 258.0, 30.62, Some(20.0)),
    system("QAT chipset DH8950 (accelerator)", 43.0, 268.0, 160.45, Some(20.0)),
    system("i7-5820K, AES-NI", 12.3, 439.0, 28.02, Some(140.0)),
    system("i7-5820K", 8.1, 439.0, 18.45, Some(140.0)),
    system("NBA, Xeon E5-2670 and GTX 680", 32.0, 4404.0, 7.27, Some(620.0)),
    system("Helion ESP, Artix-7 (accelerator)", 1.16, 34.37, 33.75, None),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits for bytes, and millijoules for microjoules; the last column is of 100 W, not of 107 W.
    #[test]
    fn energy_in_table_i_is_for_bits_and_a_thousand_times_too_much() {
        for (energy, watts) in TABLE_I.iter().zip([100.0, 108.0, 100.0]) {
            let millijoules_per_bit = watts / (energy.gbit_s * 1e9) * 1e3;
            assert!((millijoules_per_bit * 1e3 / energy.printed_mj_per_byte - 1.0).abs() < 0.01);
        }
        assert!((TABLE_I[0].joules_per_byte() * 1e9 - 800.0).abs() < 1e-6);
    }

    #[test]
    fn table_2_is_consistent_with_itself() {
        for system in &TABLE_2 {
            let found = system.gbit_s * 1e3 / system.price;
            assert!(
                (found / system.printed_mbit_s_per_dollar - 1.0).abs() < 0.01,
                "{}: {found}",
                system.name
            );
        }
    }
}
