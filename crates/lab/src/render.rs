//! Tables for people, and a picture of them.

use std::fmt::Write as _;

/// Rows of cells in columns as wide as their widest; the first column to the left, the others to the right.
pub(crate) fn columns(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::from(" ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, " {cell:<width$}"),
                _ => write!(line, "   {cell:>width$}"),
            };
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// 1234567 as "1,234,567".
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const CHARACTER_WIDTH: f64 = 8.4;
const LINE_HEIGHT: usize = 20;
const MARGIN: usize = 20;

/// A picture (SVG 1.1) of a terminal that shows `text`. Lines beginning with `$ ` are what was typed; a `✓` or `✗` is
/// coloured.
pub(crate) fn svg(text: &str) -> String {
    let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = (widest as f64).mul_add(CHARACTER_WIDTH, 2.0 * MARGIN as f64).ceil();
    let height = text.lines().count() * LINE_HEIGHT + 2 * MARGIN + LINE_HEIGHT;
    let mut picture = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<rect width="100%" height="100%" rx="10" fill="#16181d"/>
<circle cx="22" cy="18" r="6" fill="#f4645f"/><circle cx="42" cy="18" r="6" fill="#f9bd3e"/><circle cx="62" cy="18" r="6" fill="#57c353"/>
<g font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" font-size="14" fill="#d7dae0" xml:space="preserve">
"##
    );
    for (number, line) in text.lines().enumerate() {
        let y = (number + 1) * LINE_HEIGHT + MARGIN + LINE_HEIGHT / 2;
        let fill = if line.starts_with("$ ") { " fill=\"#8ab4f8\"" } else { "" };
        let _ = writeln!(picture, "<text x=\"{MARGIN}\" y=\"{y}\"{fill}>{}</text>", coloured(line));
    }
    picture + "</g>\n</svg>\n"
}

fn coloured(line: &str) -> String {
    let escaped = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped
        .replace('✓', "<tspan fill=\"#57c353\">✓</tspan>")
        .replace('✗', "<tspan fill=\"#f4645f\">✗</tspan>")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&cell| cell.to_owned()).collect()
    }

    #[test]
    fn columns_line_up_by_characters_not_bytes() {
        let table = columns(&[row(&["A → B", "9.5"]), row(&["round trip", "0.123"])]);
        assert_eq!(table, "  A → B          9.5\n  round trip   0.123\n");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [0, 999, 1000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
    }

    #[test]
    fn a_picture_shows_every_line_and_breaks_no_markup() {
        let picture = svg("$ testudo demo\na < b & c ✓\n");
        assert!(picture.contains(">$ testudo demo</text>"), "{picture}");
        assert!(picture.contains("a &lt; b &amp; c <tspan fill=\"#57c353\">✓</tspan></text>"), "{picture}");
        assert!(picture.ends_with("</svg>\n"));
    }
}
