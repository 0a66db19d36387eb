//! Walks the document key by key and collects errors instead of stopping at the first.
//!
//! A [`Section`] is a table being read. It notes every key that is looked up; the keys that remain at its end
//! are unknown ones. A value that is wrong is reported and replaced by its default or left out: the
//! configuration is refused anyway, and the walk continues to find further errors.

use super::error::{ConfigError, ConfigErrors, MAX_ERRORS};
use super::mask::masked;
use super::source::{Source, Span};
use super::suggest::did_you_mean;
use super::value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Bytes of a string of several words at most.
const MAX_WORDS_BYTES: usize = 4096;

/// What a value should have been.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) expected: String,
    /// What was found; if `None`, the text at the reported position.
    pub(super) found: Option<String>,
    pub(super) help: Option<String>,
}

impl Problem {
    pub(super) fn expected(what: impl Into<String>) -> Self {
        Self { expected: what.into(), found: None, help: None }
    }

    pub(super) fn found(self, what: impl Into<String>) -> Self {
        Self { found: Some(what.into()), ..self }
    }

    pub(super) fn help(self, what: impl Into<String>) -> Self {
        Self { help: Some(what.into()), ..self }
    }
}

/// A value and its position.
#[derive(Debug, Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) span: Span,
    pub(super) key: String,
}

impl<T> Located<T> {
    /// Another value at the same place.
    pub(super) fn map<U>(self, to: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: to(self.value), span: self.span, key: self.key }
    }
}

/// The values of a key that takes several.
#[derive(Debug)]
pub(super) struct List<T> {
    pub(super) items: Vec<Located<T>>,
    /// Whether some were wrong, and left out.
    pub(super) is_partial: bool,
}

/// Collects errors.
pub(super) struct Walker<'t> {
    source: Source<'t>,
    errors: Vec<ConfigError>,
    omitted: usize,
}

impl<'t> Walker<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { source: Source::new(text), errors: Vec::new(), omitted: 0 }
    }

    pub(super) fn report(&mut self, span: &Span, key: impl Into<String>, problem: Problem) {
        if self.errors.len() >= MAX_ERRORS {
            self.omitted += 1;
            return;
        }
        let (line, column) = self.source.position(span.start);
        let found = problem.found.or_else(|| self.source.quote(span)).unwrap_or_else(|| "nothing".to_owned());
        self.errors.push(ConfigError {
            line,
            column,
            key: masked(&key.into()),
            expected: masked(&problem.expected),
            found: masked(&found),
            help: problem.help.as_deref().map(masked),
            excerpt: Some(self.source.excerpt(span)),
        });
    }

    /// Reports that `repeated` occurred before, and on which line.
    pub(super) fn report_repeated<A, B>(
        &mut self,
        repeated: &Located<A>,
        first: &Located<B>,
        problem: Problem,
    ) {
        let help = format!("the other is on line {}", self.line(&first.span));
        let help = problem.help.as_ref().map_or(help.clone(), |more| format!("{help}; {more}"));
        self.report(&repeated.span, repeated.key.clone(), problem.help(help));
    }

    /// The text at `span`, which may be secret.
    pub(super) fn text(&self, span: &Span) -> &'t str {
        self.source.text(span)
    }

    pub(super) fn line(&self, span: &Span) -> usize {
        self.source.line(span.start)
    }

    pub(super) fn is_clean(&self) -> bool {
        self.errors.is_empty()
    }

    pub(super) fn into_errors(self, file: &str) -> ConfigErrors {
        ConfigErrors::new(file, self.errors, self.omitted)
    }
}

/// A table being read.
pub(super) struct Section<'d> {
    path: String,
    span: Span,
    table: Option<&'d DeTable<'d>>,
    asked: Vec<&'static str>,
}

impl<'d> Section<'d> {
    pub(super) fn new(path: impl Into<String>, span: Span, table: Option<&'d DeTable<'d>>) -> Self {
        Self { path: path.into(), span, table, asked: Vec::new() }
    }

    /// The position of its header.
    pub(super) fn span(&self) -> &Span {
        &self.span
    }

    /// From now on messages call the section `path`.
    pub(super) fn rename(&mut self, path: String) {
        self.path = path;
    }

    /// The full path of one of its keys.
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of this key, if present. Looking it up makes it a known key.
    pub(super) fn value(&mut self, key: &'static str) -> Option<&'d Spanned<DeValue<'d>>> {
        // A key that is looked up more than once is listed once.
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        self.table?.get(key)
    }

    pub(super) fn optional<T>(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        parse: impl FnOnce(&DeValue<'d>) -> Result<T, Problem>,
    ) -> Option<T> {
        self.located(walker, key, parse).map(|located| located.value)
    }

    /// As [`Self::optional`], with the position.
    pub(super) fn located<T>(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        parse: impl FnOnce(&DeValue<'d>) -> Result<T, Problem>,
    ) -> Option<Located<T>> {
        let value = self.value(key)?;
        match parse(value.get_ref()) {
            Ok(parsed) => Some(Located { value: parsed, span: value.span(), key: self.path_of(key) }),
            Err(problem) => {
                walker.report(&value.span(), self.path_of(key), problem);
                None
            }
        }
    }

    pub(super) fn or_default<T>(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        default: T,
        parse: impl FnOnce(&DeValue<'d>) -> Result<T, Problem>,
    ) -> T {
        self.optional(walker, key, parse).unwrap_or(default)
    }

    /// As [`Self::located`], and a missing key is an error. `example` shows how to write it.
    pub(super) fn required<T>(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        example: &str,
        parse: impl FnOnce(&DeValue<'d>) -> Result<T, Problem>,
    ) -> Option<Located<T>> {
        if self.table.is_some_and(|table| table.get(key).is_none()) {
            self.missing(walker, key, example);
        }
        self.located(walker, key, parse)
    }

    pub(super) fn missing(&mut self, walker: &mut Walker<'_>, key: &'static str, example: &str) {
        let problem = Problem::expected(format!("the key `{key}`")).found("nothing");
        walker.report(
            &self.span,
            self.path_of(key),
            problem.help(format!("add it, for example `{key} = {example}`")),
        );
    }

    /// The table under `key`, if present. A value of another type is reported.
    pub(super) fn table(&mut self, walker: &mut Walker<'_>, key: &'static str) -> Option<Section<'d>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Section::new(self.path_of(key), value.span(), Some(table))),
            other => {
                let problem = Problem::expected("a table").found(described(other));
                walker.report(&value.span(), self.path_of(key), problem);
                None
            }
        }
    }

    /// Reports that the table under `key` is missing, unless there is something else, and returns an empty
    /// one instead.
    pub(super) fn absent_section(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        header: &str,
    ) -> Section<'d> {
        // Within a section that is itself missing, only that one is reported.
        if self.table.is_some_and(|table| table.get(key).is_none()) {
            let problem = Problem::expected(format!("the section {header}")).found("nothing");
            walker.report(&self.span, self.path_of(key), problem);
        }
        Section::new(self.path_of(key), self.span.clone(), None)
    }

    /// The array of tables under `key`, at most `max` of them.
    pub(super) fn tables(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        max: usize,
    ) -> Vec<Section<'d>> {
        let Some(value) = self.value(key) else { return Vec::new() };
        let path = self.path_of(key);
        let Some(array) = value.get_ref().as_array() else {
            let help = format!("write `[[{path}]]`, or a list of tables: [ {{ … }} ]");
            let problem = Problem::expected("a list of tables").found(described(value.get_ref()));
            walker.report(&value.span(), path, problem.help(help));
            return Vec::new();
        };
        if array.len() > max {
            let problem = Problem::expected(format!("at most {max} tables")).found(array.len().to_string());
            walker.report(&value.span(), path, problem);
            return Vec::new();
        }
        let mut sections = Vec::with_capacity(array.len());
        for (index, item) in array.iter().enumerate() {
            let path = format!("{path}[{index}]");
            match item.get_ref() {
                DeValue::Table(table) => sections.push(Section::new(path, item.span(), Some(table))),
                other => {
                    walker.report(&item.span(), path, Problem::expected("a table").found(described(other)));
                }
            }
        }
        sections
    }

    /// The items of the list under `key`, at most `max` of them; those that are wrong are left out.
    pub(super) fn list<T>(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        max: usize,
        parse: impl Fn(&DeValue<'d>) -> Result<T, Problem>,
    ) -> Option<Vec<Located<T>>> {
        let value = self.value(key)?;
        let path = self.path_of(key);
        let Some(array) = value.get_ref().as_array().filter(|array| array.len() <= max) else {
            walker.report(&value.span(), path, Problem::expected(format!("a list of at most {max}")));
            return None;
        };
        let mut items = Vec::with_capacity(array.len());
        for (index, item) in array.iter().enumerate() {
            let key = format!("{path}[{index}]");
            match parse(item.get_ref()) {
                Ok(value) => items.push(Located { value, span: item.span(), key }),
                Err(problem) => walker.report(&item.span(), key, problem),
            }
        }
        Some(items)
    }

    /// The words under `key`, at most `max`: a string or a number, or a list of them; a string may have
    /// several, with commas between them. Those that are wrong are reported and left out. `None` without the
    /// key.
    pub(super) fn words<T>(
        &mut self,
        walker: &mut Walker<'_>,
        key: &'static str,
        max: usize,
        parse: impl Fn(&str) -> Result<T, Problem>,
    ) -> Option<List<T>> {
        let value = self.value(key)?;
        let path = self.path_of(key);
        let mut list = List { items: Vec::new(), is_partial: false };
        let single = std::slice::from_ref(value);
        let (values, is_list) = match value.get_ref().as_array() {
            Some(array) => (array.iter().as_slice(), true),
            None => (single, false),
        };
        let words: usize = values.iter().map(|value| words_of(value.get_ref()).map_or(1, |w| w.len())).sum();
        if words == 0 || words > max {
            let problem = Problem::expected(format!("1 to {max} values")).found(words.to_string());
            walker.report(&value.span(), path, problem);
            return Some(List { is_partial: true, ..list });
        }
        for (index, item) in values.iter().enumerate() {
            let key = if is_list { format!("{path}[{index}]") } else { path.clone() };
            let Some(words) = words_of(item.get_ref()) else {
                let problem = Problem::expected("a string or a number").found(described(item.get_ref()));
                walker.report(&item.span(), key, problem);
                list.is_partial = true;
                continue;
            };
            for word in &words {
                match parse(word) {
                    Ok(value) => list.items.push(Located { value, span: item.span(), key: key.clone() }),
                    Err(problem) => {
                        // Of several words in one string, the one that is wrong.
                        let problem =
                            if words.len() > 1 { problem.found(format!("\"{word}\"")) } else { problem };
                        walker.report(&item.span(), key.clone(), problem);
                        list.is_partial = true;
                    }
                }
            }
        }
        Some(list)
    }

    /// Refuses `key` if it is present: it is only allowed in combination with something else.
    pub(super) fn refuse(&mut self, walker: &mut Walker<'_>, key: &'static str, problem: Problem) {
        if let Some(value) = self.value(key) {
            walker.report(&value.span(), self.path_of(key), problem);
        }
    }

    /// Reports the keys that were never looked up.
    pub(super) fn finish(self, walker: &mut Walker<'_>) {
        for (key, _) in self.table.into_iter().flatten() {
            let name = key.get_ref().as_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let help = did_you_mean(name, self.asked.iter().copied());
            let known = self.asked.join(", ");
            let help = help.unwrap_or_else(|| format!("the keys here are: {known}"));
            walker.report(&key.span(), self.path_of(name), Problem::expected("a known key").help(help));
        }
    }
}

/// The words of a string, or a number as a word; `None` for a value of another type.
fn words_of(value: &DeValue<'_>) -> Option<Vec<String>> {
    match value {
        DeValue::String(text) if text.len() <= MAX_WORDS_BYTES && !text.contains('\0') => {
            Some(text.split(',').map(|word| word.trim().to_owned()).collect())
        }
        DeValue::Integer(_) => value::integer(value).map(|number| vec![number.to_string()]),
        _ => None,
    }
}

/// Names a value's type, for messages in which its text would say no more.
pub(super) fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Integer(_) => "an integer".to_owned(),
        other => format!("a {}", other.type_str()),
    }
}
