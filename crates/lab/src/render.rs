//! A picture of a terminal.

use std::fmt::Write as _;

const CHARACTER_WIDTH: f64 = 8.4;
const LINE_HEIGHT: usize = 20;
const MARGIN: usize = 20;

/// A picture (SVG 1.1) of a terminal that shows `text`. Lines beginning with `$ ` are commands; they, `✓` and
/// `✗` are coloured.
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

    #[test]
    fn a_picture_shows_every_line_and_breaks_no_markup() {
        let picture = svg("$ testudo demo\na < b & c ✓\n");
        assert!(picture.contains(">$ testudo demo</text>"), "{picture}");
        assert!(picture.contains("a &lt; b &amp; c <tspan fill=\"#57c353\">✓</tspan></text>"), "{picture}");
        assert!(picture.ends_with("</svg>\n"));
    }
}
