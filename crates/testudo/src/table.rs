//! Tables for people: columns as wide as they must be, numbers to the right.

use serde_json::Value;

/// A table that is printed when complete.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|h| (*h).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints it to standard output.
    pub fn print(&self) {
        crate::out::write(&self.render());
    }

    fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let cells = |column: usize| self.rows.iter().filter_map(move |r| r.get(column));
        let width: Vec<_> =
            (0..columns).map(|c| cells(c).map(|t| t.chars().count()).max().unwrap_or(0)).collect();
        let numeric: Vec<_> = (0..columns).map(|c| cells(c).skip(1).all(|t| is_number(t))).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let (w, gap) = (width[column], if column == 0 { "" } else { "  " });
                let padded =
                    if numeric[column] { format!("{gap}{cell:>w$}") } else { format!("{gap}{cell:<w$}") };
                line.push_str(&padded);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == ',')
}

/// A JSON value as a cell: text without quotes, numbers with separators, `-` for nothing.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(n) => n.as_u64().map_or_else(|| n.to_string(), grouped),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).to_owned(),
        other => other.to_string(),
    }
}

/// A number with a comma between thousands.
pub fn grouped(n: u64) -> String {
    group(&n.to_string())
}

/// The same for a figure, rounded; it is not negative.
pub fn grouped_figure(value: f64) -> String {
    group(&format!("{value:.0}"))
}

fn group(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_stand_to_the_right() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(grouped).each_ref().map(String::as_str)
        );
        let mut table = Table::new(&["name", "packets"]);
        table.row(vec!["a".into(), grouped(5)]);
        table.row(vec!["long name".into(), grouped(12345)]);
        assert_eq!(table.render(), "name       packets\na                5\nlong name   12,345\n");
    }
}
