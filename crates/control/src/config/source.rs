//! The text of a configuration: positions in it, and excerpts that are safe to print.

use super::error::Excerpt;
use super::mask::secret_ranges;
use std::ops::Range;

/// A range of the text, in bytes.
pub(super) type Span = Range<usize>;

/// Characters of a line that an excerpt shows at most.
const EXCERPT_CHARS: usize = 100;
/// Characters that it shows before the marked part at most.
const CHARS_BEFORE: usize = 60;
/// Characters of a value that a message quotes at most.
const QUOTE_CHARS: usize = 60;

/// A configuration's text, with its line starts and the ranges that are secret.
pub(super) struct Source<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
    secrets: Vec<Span>,
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let after_newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(after_newlines).collect();
        Self { text, line_starts, secrets: secret_ranges(text) }
    }

    /// The text at `span` as it was written: it may be secret.
    pub(super) fn text(&self, span: &Span) -> &'t str {
        self.text.get(span.clone()).unwrap_or_default()
    }

    /// Line of a byte, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        let offset = offset.min(self.text.len());
        self.line_starts.partition_point(|start| *start <= offset).max(1)
    }

    /// Line and column of a byte, both from 1.
    pub(super) fn position(&self, offset: usize) -> (usize, usize) {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.line(offset);
        let start = self.line_starts.get(line - 1).copied().unwrap_or_default();
        (line, 1 + self.text.get(start..offset).unwrap_or_default().chars().count())
    }

    /// The text at `span` for a message: shortened, on one line, secrets masked. `None` if it is empty.
    pub(super) fn quote(&self, span: &Span) -> Option<String> {
        let mut shown = self.printable(span).take(QUOTE_CHARS + 1).collect::<Vec<char>>();
        if shown.len() > QUOTE_CHARS {
            shown.truncate(QUOTE_CHARS - 1);
            shown.push('…');
        }
        (!shown.is_empty()).then(|| shown.into_iter().collect())
    }

    /// The line on which `span` starts, and the part of it that `span` covers.
    pub(super) fn excerpt(&self, span: &Span) -> Excerpt {
        let (line, column) = self.position(span.start);
        let start = self.line_starts.get(line - 1).copied().unwrap_or_default();
        let next = self.line_starts.get(line).copied().unwrap_or(self.text.len() + 1);
        let end = next.saturating_sub(1).max(start);
        let skipped = (column - 1).saturating_sub(CHARS_BEFORE);
        let text: String = self.printable(&(start..end)).skip(skipped).take(EXCERPT_CHARS).collect();
        let text = text.trim_end().to_owned();
        let mark_start = column - 1 - skipped;
        let marked = self.printable(&(span.start..span.end.min(end))).take(EXCERPT_CHARS).count();
        let room = text.chars().count().saturating_sub(mark_start);
        Excerpt { text, mark_start, mark_width: marked.min(room).max(1) }
    }

    /// The characters of `span`, with control characters and secrets replaced one for one.
    fn printable(&self, span: &Span) -> impl Iterator<Item = char> {
        let start = self.text.floor_char_boundary(span.start);
        let end = self.text.floor_char_boundary(span.end).max(start);
        let first = self.secrets.partition_point(|secret| secret.end <= start);
        let mut secrets = self.secrets[first..].iter().peekable();
        self.text.get(start..end).unwrap_or_default().char_indices().map(move |(at, c)| {
            let at = start + at;
            while secrets.next_if(|secret| secret.end <= at).is_some() {}
            match c {
                _ if secrets.peek().is_some_and(|secret| secret.contains(&at)) => '*',
                '\t' | '\n' | '\r' => ' ',
                _ if is_unprintable(c) => '\u{fffd}',
                _ => c,
            }
        })
    }
}

/// Characters that control the terminal or change the direction of its text.
fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_from_one() {
        let source = Source::new("a = 1\nü = 2\n");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(6), (2, 1));
        assert_eq!(source.position(8), (2, 2));
        assert_eq!(source.position(7), (2, 1), "inside a character");
        assert_eq!(source.position(1000), (3, 1));
    }

    #[test]
    fn a_long_line_is_clipped_around_the_error() {
        let text = format!("x = [{}\"bad\"]", "1, ".repeat(200));
        let start = text.find("\"bad\"").unwrap();
        let excerpt = Source::new(&text).excerpt(&(start..start + 5));
        assert_eq!(excerpt.mark_start, CHARS_BEFORE);
        assert_eq!(excerpt.mark_width, 5);
        assert!(excerpt.text.chars().count() <= EXCERPT_CHARS);
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = "name = \"a\u{1b}[2Jb\u{202e}\"";
        let excerpt = Source::new(text).excerpt(&(7..text.len()));
        assert!(!excerpt.text.contains('\u{1b}') && !excerpt.text.contains('\u{202e}'));
    }
}
