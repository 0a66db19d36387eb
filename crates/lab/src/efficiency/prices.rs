//! What things cost: a file of the user's, in TOML.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::papers::TABLE_2;
use crate::bench::BenchError;

/// A file is read up to here.
const MOST_BYTES: u64 = 64 << 10;
const MOST_CHARACTERS: usize = 80;

/// What the machine costs that is measured, and what the systems of table 2 of paper 002 cost today.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    /// Before figures and in heads of columns.
    #[serde(default = "dollars")]
    pub(super) currency: String,
    pub(super) machine: Priced,
    #[serde(default, rename = "system")]
    pub(super) systems: Vec<Priced>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Priced {
    pub(super) name: String,
    pub(super) price: f64,
    /// What it takes at work, as its user says.
    pub(super) watts: Option<f64>,
}

fn dollars() -> String {
    "US$".to_owned()
}

/// The text of a file of prices.
///
/// # Errors
/// [`BenchError::Usage`] that names the file and what is wrong with it.
pub(crate) fn text(path: &Path) -> Result<String, BenchError> {
    Prices::with_text(path).map(|(_, text)| text)
}

impl Prices {
    /// Reads the file.
    ///
    /// # Errors
    /// [`BenchError::Usage`] that names the file and what is wrong with it.
    pub(super) fn read(path: &Path) -> Result<Self, BenchError> {
        Self::with_text(path).map(|(prices, _)| prices)
    }

    /// The same, and the text of the file.
    fn with_text(path: &Path) -> Result<(Self, String), BenchError> {
        let wrong = |what: &dyn std::fmt::Display| {
            BenchError::Usage(format!("--prices: {}: {}", path.display(), what.to_string().trim_end()))
        };
        let mut text = String::new();
        let file = File::open(path).map_err(|error| wrong(&error))?;
        let read = file.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(|error| wrong(&error))?;
        if u64::try_from(read).is_ok_and(|read| read > MOST_BYTES) {
            return Err(wrong(&format!("more than {MOST_BYTES} bytes are no prices")));
        }
        let prices = Self::parse(&text).map_err(|what| wrong(&what))?;
        Ok((prices, text))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let prices: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        printable("currency", &prices.currency)?;
        prices.machine.check("machine")?;
        for (number, system) in prices.systems.iter().enumerate() {
            system.check(&system.name)?;
            if !TABLE_2.iter().any(|known| known.name == system.name) {
                let names = TABLE_2.map(|known| format!("\"{}\"", known.name)).join(", ");
                return Err(format!("\"{}\" is none of the systems of table 2: {names}", system.name));
            }
            if prices.systems.iter().skip(number + 1).any(|other| other.name == system.name) {
                return Err(format!("\"{}\" has two prices", system.name));
            }
        }
        Ok(prices)
    }

    /// Today's price of a system of the paper's.
    pub(super) fn of(&self, name: &str) -> Option<&Priced> {
        self.systems.iter().find(|system| system.name == name)
    }
}

impl Priced {
    fn check(&self, what: &str) -> Result<(), String> {
        printable("name", &self.name)?;
        let is_figure = |figure: f64, most: f64| figure > 0.0 && figure <= most;
        if !is_figure(self.price, 1e12) {
            return Err(format!("{what}: a price is above 0, and at most 1e12"));
        }
        if self.watts.is_some_and(|watts| !is_figure(watts, 1e6)) {
            return Err(format!("{what}: watts are above 0, and at most 1e6"));
        }
        Ok(())
    }
}

/// What is shown on a terminal has no characters that would command it.
fn printable(what: &str, text: &str) -> Result<(), String> {
    let is_long = text.chars().count() > MOST_CHARACTERS;
    if text.is_empty() || is_long || text.chars().any(char::is_control) {
        return Err(format!("{what}: 1 to {MOST_CHARACTERS} characters, without control characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the example.
    const DOCUMENTATION: &str = include_str!("../../../../docs/LAB.md");

    fn example() -> &'static str {
        DOCUMENTATION.split_once("```toml\n").unwrap().1.split_once("```").unwrap().0
    }

    #[test]
    fn the_example_of_the_documentation_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.toml");
        std::fs::write(&path, example()).unwrap();
        let prices = Prices::read(&path).unwrap();
        assert_eq!(prices.currency, "EUR");
        assert!(prices.machine.price > 0.0 && prices.machine.watts.is_some());
        assert!(prices.of(TABLE_2[0].name).is_some() && prices.of(TABLE_2[8].name).is_none());
    }

    #[test]
    fn a_machine_has_a_price_and_systems_are_those_of_the_paper() {
        let least = "[machine]\nname = \"m\"\nprice = 439\n";
        let prices = Prices::parse(least).unwrap();
        assert_eq!(
            (prices.currency.as_str(), prices.machine.price, prices.machine.watts),
            ("US$", 439.0, None)
        );
        let system = |name: &str| format!("[[system]]\nname = \"{name}\"\nprice = 1.5\n");
        let known = system(TABLE_2[5].name);
        assert_eq!(Prices::parse(&format!("{least}{known}")).unwrap().systems[0].price, 1.5);
        for (wrong, told) in [
            (String::new(), "machine"),
            (format!("{least}{known}{known}"), "has two prices"),
            (format!("{least}{}", system("Enigma")), "\"Enigma\" is none of the systems of table 2"),
            (least.replace("439", "0"), "machine: a price is above 0"),
            (least.replace("439", "nan"), "machine: a price is above 0"),
            (least.replace("439", "inf"), "machine: a price is above 0"),
            (format!("{least}watts = -1\n"), "machine: watts are above 0"),
            (least.replace("\"m\"", "\"\\u001b[2J\""), "name: 1 to 80 characters"),
            (format!("currency = \"\"\n{least}"), "currency: 1 to 80 characters"),
            (format!("{least}colour = \"red\"\n"), "colour"),
        ] {
            let error = Prices::parse(&wrong).unwrap_err();
            assert!(error.contains(told), "{wrong}: {error}");
        }
    }

    #[test]
    fn files_that_are_missing_or_too_long_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("prices.toml");
        let error = Prices::read(&path).unwrap_err().to_string();
        assert!(error.starts_with("--prices: ") && error.contains("prices.toml: "), "{error}");
        std::fs::write(&path, "#".repeat(70_000)).unwrap();
        let error = Prices::read(&path).unwrap_err().to_string();
        assert!(error.ends_with("more than 65536 bytes are no prices"), "{error}");
    }
}
