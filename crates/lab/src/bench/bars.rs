//! Bars of shares that are a whole: a row for each thing, in it a group for each setting, in that a bar for
//! each who had shares (SVG 1.1).

use std::fmt::Write as _;

use super::chart::{CHARACTER, COLOURS, Drawn, LEFT, LEGEND_GAP, LEGEND_LINE, TOP, WIDTH, escaped, heading};

/// Height of 100 %, and of a row with its name and labels, in pixels.
const BAR: f64 = 80.0;
const NAME: f64 = 20.0;
const ROW: f64 = NAME + BAR + 34.0;
/// Of a group's place, what its bars fill; the widest bar, in pixels; and what is between bars of a group.
const FILLED: f64 = 0.7;
const WIDEST: f64 = 34.0;
const BETWEEN: f64 = 2.0;
/// What is left when nobody had it.
const REST: &str = "#e6e6e6";

/// A part of each bar.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Whether it is what was left over: drawn pale, and last.
    pub(crate) is_rest: bool,
}

/// Bars of one setting, such as a size of messages: the shares of each, 0 to 1, in the order of parts.
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) bars: Vec<Vec<f64>>,
}

/// Groups of one thing.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) groups: Vec<Group>,
}

/// Rows of bars, with a legend beside them.
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    /// What groups differ in, with its unit.
    pub(crate) across: String,
    pub(crate) parts: Vec<Part>,
    pub(crate) rows: Vec<Row>,
}

impl Bars {
    fn colour(&self, part: usize) -> &'static str {
        match self.parts.get(part) {
            Some(Part { is_rest: true, .. }) | None => REST,
            Some(_) => COLOURS[part % COLOURS.len()],
        }
    }

    /// Indices of parts, from the bottom of a bar up.
    fn order(&self) -> Vec<usize> {
        let of = |rest: bool| (0..self.parts.len()).filter(move |&part| self.parts[part].is_rest == rest);
        of(false).chain(of(true)).collect()
    }

    pub(super) fn draw(&self) -> Drawn {
        let longest = self.parts.iter().map(|part| part.name.chars().count()).max().unwrap_or(0);
        let legend = LEFT + WIDTH + LEGEND_GAP;
        let texts = self.rows.iter().map(|row| &row.name).chain([&self.title, &self.subtitle]);
        let widest = texts.map(|text| text.chars().count()).max().unwrap_or(0);
        let width = (legend + 24.0 + longest as f64 * CHARACTER + 16.0)
            .max(LEFT + widest as f64 * CHARACTER + 16.0)
            .ceil();
        let bottom = TOP + self.rows.len() as f64 * ROW;
        let legend_bottom = TOP + NAME + self.parts.len() as f64 * LEGEND_LINE;
        let mut body = heading(&self.title, &self.subtitle);
        for (number, row) in (0..).map(f64::from).zip(&self.rows) {
            self.draw_row(&mut body, row, TOP + number * ROW);
        }
        let _ = writeln!(
            body,
            r#"<text x="{}" y="{}" text-anchor="middle">{}</text>"#,
            LEFT + WIDTH / 2.0,
            bottom + 8.0,
            escaped(&self.across)
        );
        // From the top of a bar down, as parts lie.
        for (line, part) in (0..).map(f64::from).zip(self.order().into_iter().rev()) {
            let y = TOP + NAME + line * LEGEND_LINE;
            let name = self.parts.get(part).map_or("", |part| part.name);
            let _ = writeln!(
                body,
                r#"<rect x="{legend}" y="{y}" width="16" height="14" fill="{}"/><text x="{}" y="{}">{}</text>"#,
                self.colour(part),
                legend + 24.0,
                y + 12.0,
                escaped(name)
            );
        }
        Drawn { body, width, height: (bottom + 30.0).max(legend_bottom).ceil() }
    }

    fn draw_row(&self, body: &mut String, row: &Row, top: f64) {
        let (ceiling, floor, right) = (top + NAME, top + NAME + BAR, LEFT + WIDTH);
        let _ = writeln!(
            body,
            r#"<text x="{LEFT}" y="{}" font-weight="bold">{}</text>"#,
            top + 12.0,
            escaped(&row.name)
        );
        for (percent, y) in [(100, ceiling), (50, ceiling + BAR / 2.0), (0, floor)] {
            let _ = writeln!(
                body,
                r##"<line x1="{LEFT}" y1="{y}" x2="{right}" y2="{y}" stroke="#cccccc"/><text x="{}" y="{}" text-anchor="end">{percent} %</text>"##,
                LEFT - 8.0,
                y + 4.0
            );
        }
        let place = WIDTH / row.groups.len().max(1) as f64;
        for (number, group) in (0..).map(f64::from).zip(&row.groups) {
            let middle = LEFT + (number + 0.5) * place;
            let count = group.bars.len().max(1) as f64;
            let bar = (place * FILLED / count - BETWEEN).clamp(1.0, WIDEST);
            let first = middle - (bar + BETWEEN) * count / 2.0;
            for (index, shares) in (0..).map(f64::from).zip(&group.bars) {
                self.draw_bar(body, shares, (first + index * (bar + BETWEEN), bar), floor);
            }
            let _ = writeln!(
                body,
                r#"<text x="{middle:.1}" y="{}" text-anchor="middle">{}</text>"#,
                floor + 16.0,
                escaped(&group.label)
            );
        }
    }

    fn draw_bar(&self, body: &mut String, shares: &[f64], (x, width): (f64, f64), floor: f64) {
        let mut y = floor;
        for part in self.order() {
            let share = shares.get(part).copied().unwrap_or(0.0).clamp(0.0, 1.0);
            let height = share * BAR;
            y -= height;
            if height > 0.0 {
                let colour = self.colour(part);
                let name = self.parts.get(part).map_or("", |part| part.name);
                let _ = writeln!(
                    body,
                    r#"<rect x="{x:.1}" y="{y:.2}" width="{width:.1}" height="{height:.2}" fill="{colour}"><title>{}: {:.1} %</title></rect>"#,
                    escaped(name),
                    share * 100.0
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bars(groups: usize) -> Bars {
        let part = |name, is_rest| Part { name, is_rest };
        let group =
            |n: usize| Group { label: n.to_string(), bars: vec![vec![0.5, 0.3, 0.2], vec![0.0, 1.0, 0.0]] };
        let row = |name: &str| Row { name: name.to_owned(), groups: (0..groups).map(group).collect() };
        Bars {
            title: "t".to_owned(),
            subtitle: "s".to_owned(),
            across: "x".to_owned(),
            parts: vec![part("user", false), part("idle", true), part("steal <&>", false)],
            rows: vec![row("a <fast> & good one"), row("b")],
        }
    }

    /// What follows `NAME="` in each element that has it.
    fn attributes(body: &str, element: &str, name: &str) -> Vec<f64> {
        let of = |part: &str| {
            let (_, rest) = part.split_once(&format!(" {name}=\""))?;
            rest.split('"').next()?.parse().ok()
        };
        body.split('<').filter(|part| part.starts_with(element)).filter_map(of).collect()
    }

    #[test]
    fn parts_of_a_bar_lie_on_each_other_and_are_the_whole_with_what_is_left_on_top() {
        let drawn = bars(3).draw();
        let of_bars = |part: &&str| {
            part.starts_with("rect ") && part.contains("height=\"") && !part.contains("width=\"16\"")
        };
        let rects: Vec<&str> = drawn.body.split('<').filter(of_bars).collect();
        // A bar of three parts and one of a single part, in three groups of two rows.
        assert_eq!(rects.len(), 2 * 3 * (3 + 1), "{}", drawn.body);
        let figure = |rect: &str, name: &str| -> f64 {
            rect.split_once(&format!(" {name}=\"")).unwrap().1.split('"').next().unwrap().parse().unwrap()
        };
        let (first, whole) = (&rects[..3], rects[3]);
        let heights: Vec<f64> = first.iter().map(|rect| figure(rect, "height")).collect();
        assert_eq!(heights, [0.5 * BAR, 0.2 * BAR, 0.3 * BAR], "what is left is last");
        assert!(first[2].contains(REST));
        for pair in first.windows(2) {
            assert!((figure(pair[0], "y") - figure(pair[1], "y") - figure(pair[1], "height")).abs() < 0.02);
        }
        assert!((figure(whole, "y") - figure(first[2], "y")).abs() < 0.02, "both reach 100 %");
        assert!(
            drawn.body.contains("a &lt;fast&gt; &amp; good one")
                && drawn.body.contains("steal &lt;&amp;&gt;: 20.0 %")
        );
    }

    #[test]
    fn everything_is_inside_however_many_groups_there_are() {
        for groups in [0, 1, 10, 200] {
            let Drawn { body, width, height } = bars(groups).draw();
            for (x, across) in
                attributes(&body, "rect", "x").into_iter().zip(attributes(&body, "rect", "width"))
            {
                assert!(x >= 0.0 && x + across <= width, "{groups}: {x} {across} {width}");
            }
            for (y, up) in attributes(&body, "rect", "y").into_iter().zip(attributes(&body, "rect", "height"))
            {
                assert!(y >= TOP && y + up <= height, "{groups}: {y} {up} {height}");
            }
            assert!(attributes(&body, "text", "y").iter().all(|y| *y < height));
            assert!(!body.contains("NaN") && !body.contains("inf"));
        }
    }
}
