//! All figures and tables of all papers, and how some of them are selected.

use std::str::FromStr;

use super::item::Item;
use super::{linux_ipsec, moongen, network_processor, pipsea, vpe};

/// Every figure and table, in the order of papers.
pub(super) fn all() -> impl Iterator<Item = &'static Item> {
    let papers: [&'static [Item]; 5] =
        [&moongen::ITEMS, &linux_ipsec::ITEMS, &pipsea::ITEMS, &vpe::ITEMS, &network_processor::ITEMS];
    papers.into_iter().flatten()
}

/// A paper, or one of its figures, on the command line: `003`, `003-figure-7`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Only(String);

impl Only {
    pub(super) fn is_of(&self, item: &Item) -> bool {
        self.0 == item.paper.number() || self.0 == item.id()
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }
}

impl FromStr for Only {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let only = Self(name.to_ascii_lowercase());
        if all().any(|item| only.is_of(item)) {
            return Ok(only);
        }
        let paper = name.get(..3).unwrap_or_default();
        let of_paper: Vec<String> = all().filter(|item| item.paper.number() == paper).map(Item::id).collect();
        Err(match of_paper.is_empty() {
            true => "expected a paper, 000 to 004, or one of its figures, such as 003-figure-7".to_owned(),
            false => format!("paper {paper} has no such figure; it has {}", of_paper.join(", ")),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::super::item::{How, Mode};
    use super::*;

    /// What the papers have, counted in their texts: numbers of figures whose parts are items of their own
    /// have letters.
    const FIGURES: [(&str, &str, &str); 5] = [
        ("000", "1 2 3 4 5a 5b", "i"),
        ("001", "1 2 3 4 5 6", "1"),
        ("002", "1 2 3 4 5 6 7 8 9 10 11 12 13 14a 14b 15a 15b 16 17", "1 2"),
        ("003", "1 2 3 4 5 6 7 8", ""),
        ("004", "1 2 3 4 5", ""),
    ];

    #[test]
    fn every_figure_and_table_of_the_five_papers_is_there_once() {
        let ids: Vec<String> = all().map(Item::id).collect();
        let unique: HashSet<&String> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len(), "one twice");
        let mut expected: HashSet<String> = ["001-section-5", "004-section-4-3"].map(str::to_owned).into();
        for (paper, figures, tables) in FIGURES {
            expected.extend(figures.split_whitespace().map(|n| format!("{paper}-figure-{n}")));
            expected.extend(tables.split_whitespace().map(|n| format!("{paper}-table-{n}")));
        }
        assert_eq!(ids.into_iter().collect::<HashSet<_>>(), expected);
    }

    #[test]
    fn what_is_not_measured_says_why_and_what_is_has_a_command_and_a_time() {
        for item in all() {
            assert!(!item.title.is_empty(), "{}", item.id());
            match item.how {
                How::Drawing(words) => assert!(words.len() > 10, "{}", item.id()),
                How::Measured(method) => {
                    for mode in [Mode::Quick, Mode::Full] {
                        assert!(method.seconds(mode) > 0, "{}", item.id());
                        let command = method.command(mode, 4, Some("/tmp/prices.toml"));
                        for part in command.split(super::super::item::AND) {
                            super::super::measure::parse(part).expect("a command");
                        }
                    }
                    assert!(method.conditions.len() > 30, "{}", item.id());
                }
            }
        }
    }

    /// `make lab` may take 20 minutes, and builds the program first. What figures share is measured once.
    #[test]
    fn a_quick_run_is_expected_to_take_minutes() {
        let methods = all().filter_map(Item::method);
        let commands: HashMap<&str, u32> = methods.map(|m| (m.quick, m.seconds(Mode::Quick))).collect();
        let seconds: u32 = commands.values().sum();
        assert!(seconds < 480, "{seconds} s");
    }

    #[test]
    fn papers_and_figures_are_selected_by_name() {
        let of = |name: &str| {
            let only: Only = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            all().filter(|item| only.is_of(item)).count()
        };
        assert_eq!([of("003"), of("003-figure-7"), of("000-Figure-5a")], [8, 1, 1]);
        assert!("005".parse::<Only>().unwrap_err().contains("000 to 004"));
        assert!("003-figure-9".parse::<Only>().unwrap_err().contains("003-figure-8"));
        for wrong in ["", "0", "figure-7", "00é"] {
            assert!(wrong.parse::<Only>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn commands_name_prices_and_bind_ends_only_where_there_are_any() {
        let command = |id: &str, processors, prices| {
            let method = all().find(|item| item.id() == id).and_then(Item::method).unwrap();
            method.command(Mode::Quick, processors, prices)
        };
        let end = |command: String| command.rsplit(' ').next().map(str::to_owned).unwrap_or_default();
        assert_eq!(end(command("002-table-2", 4, Some("/p.toml"))), "/p.toml");
        assert!(!command("002-table-2", 4, None).contains("prices"));
        assert!(!command("000-table-i", 4, Some("/p.toml")).contains("/p.toml"), "it has no use for them");
        assert_eq!(end(command("001-figure-5", 2, None)), "--pin");
        assert!(!command("001-figure-5", 1, None).contains("pin"));
    }

    #[test]
    fn workers_are_powers_of_two_up_to_the_number_of_processors() {
        let scaling = all().find(|item| item.id() == "003-figure-6").and_then(Item::method).unwrap();
        let workers = |processors| {
            let command = scaling.command(Mode::Full, processors, None);
            command.rsplit(' ').next().unwrap_or_default().to_owned()
        };
        assert_eq!([workers(1), workers(2), workers(12)], ["1,2", "1,2", "1,2,4,8"]);
        assert_eq!(workers(500), "1,2,4,8,16,32,64");
    }
}
