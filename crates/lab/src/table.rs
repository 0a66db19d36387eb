//! Tables for the terminal: columns as wide as their widest cell.

use std::fmt;

/// Rows of cells. `Display` prints them as lines.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
    layout: Layout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Not indented; columns of numbers are right-aligned, with their heads.
    List,
    /// Indented; all columns but the first are right-aligned.
    Report,
}

impl Table {
    /// A list with these column heads: columns of numbers are right-aligned.
    #[must_use]
    pub fn new(heads: &[&str]) -> Self {
        Self { rows: vec![heads.iter().map(|&head| head.to_owned()).collect()], layout: Layout::List }
    }

    /// The rows of a report, indented: every column but the first is right-aligned.
    #[must_use]
    pub fn report(rows: Vec<Vec<String>>) -> Self {
        Self { rows, layout: Layout::Report }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Width of a column, and whether it is right-aligned.
    fn column(&self, column: usize) -> (usize, bool) {
        let cells = || self.rows.iter().filter_map(|row| row.get(column));
        let width = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let is_right = match self.layout {
            Layout::List => cells().skip(1).all(|cell| is_number(cell)),
            Layout::Report => column > 0,
        };
        (width, is_right)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (indent, gap) = match self.layout {
            Layout::List => ("", "  "),
            Layout::Report => ("  ", "   "),
        };
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let columns: Vec<_> = (0..count).map(|column| self.column(column)).collect();
        for row in &self.rows {
            let mut line = indent.to_owned();
            for (column, (cell, &(width, is_right))) in row.iter().zip(&columns).enumerate() {
                line += if column == 0 { "" } else { gap };
                line += &if is_right { format!("{cell:>width$}") } else { format!("{cell:<width$}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == ',')
}

/// A number with a comma between thousands: 1234567 as "1,234,567".
#[must_use]
pub fn grouped(n: u64) -> String {
    group(&n.to_string())
}

/// The same for a fractional number, rounded; it must not be negative.
#[must_use]
pub fn grouped_figure(value: f64) -> String {
    group(&format!("{value:.0}"))
}

fn group(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn columns_line_up_by_characters_not_bytes() {
        let table = Table::report(vec![row(&["A → B", "9.5"]), row(&["round trip", "0.123"])]);
        assert_eq!(table.to_string(), "  A → B          9.5\n  round trip   0.123\n");
    }

    #[test]
    fn numbers_are_grouped_and_right_aligned() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(grouped),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
        assert_eq!(grouped_figure(1234.6), "1,235");
        let mut table = Table::new(&["name", "packets"]);
        table.row(row(&["a", "5"]));
        table.row(row(&["long name", "12,345"]));
        assert_eq!(table.to_string(), "name       packets\na                5\nlong name   12,345\n");
    }
}
