//! What `swanctl --raw` prints: sections, values and lists.

use crate::support::Outcome;
use std::collections::BTreeMap;

/// A section, with its own sections and values. A list is a section whose values are named by their places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    pub sections: BTreeMap<String, Section>,
    pub values: BTreeMap<String, String>,
}

/// Where a list ends: selectors with a protocol and ports have brackets of their own, `10.2.0.0/16[tcp/80]`.
fn end_of_list(list: &str) -> Option<usize> {
    let mut open = 1;
    list.find(|character| {
        open += i32::from(character == '[') - i32::from(character == ']');
        open == 0
    })
}

impl Section {
    /// Reads the rest of a section: `name {…} key=value list=[a b]`, up to its end.
    fn read(rest: &mut &str) -> Outcome<Self> {
        let mut section = Self::default();
        loop {
            *rest = rest.trim_start();
            if rest.is_empty() {
                return Ok(section);
            }
            if let Some(after) = rest.strip_prefix('}') {
                *rest = after;
                return Ok(section);
            }
            let end = rest.find(['=', '{', '}']).ok_or_else(|| format!("no value: {rest}"))?;
            let (name, after) = rest.split_at(end);
            let name = name.trim().to_owned();
            if let Some(after) = after.strip_prefix('{') {
                *rest = after;
                section.sections.insert(name, Self::read(rest)?);
            } else if let Some(list) = after.strip_prefix("=[") {
                let end = end_of_list(list).ok_or("a list without an end")?;
                section.values.insert(name, list[..end].to_owned());
                *rest = &list[end + 1..];
            } else {
                let value = after.strip_prefix('=').ok_or_else(|| format!("no value of {name}"))?;
                let end = value.find([' ', '}', '\n']).unwrap_or(value.len());
                section.values.insert(name, value[..end].to_owned());
                *rest = &value[end..];
            }
        }
    }

    pub fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }
}

/// The sections of all events called `event` (`event {…}`), such as `list-sa event`.
pub fn events(text: &str, event: &str) -> Outcome<Vec<Section>> {
    let mut found = Vec::new();
    for line in text.lines() {
        if let Some(mut rest) = line.strip_prefix(event).and_then(|rest| rest.trim_start().strip_prefix('{'))
        {
            found.push(Section::read(&mut rest)?);
        }
    }
    Ok(found)
}
