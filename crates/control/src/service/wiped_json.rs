//! JSON that leaves no text behind: requests may have keys, in the right place or in a wrong one.
//!
//! Every string is zeroed when it is dropped: what a request has beside what was read of it, what a key that
//! occurs twice had the first time, and all that was read of a text that turns out to be no JSON. (Text with
//! escapes, which keys do not need, passes through a buffer of the parser that is not zeroed.)

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;
use std::io::{self, Write};
use std::ops::{Deref, DerefMut};
use zeroize::{Zeroize, Zeroizing};

/// A value whose strings are zeroed when it is dropped.
pub(super) struct Wiped(Value);

impl Wiped {
    /// Wipes this value at its end.
    pub(super) fn new(value: Value) -> Self {
        Self(value)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is no JSON. The error has nothing of the text.
    pub(super) fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice::<Tree>(text).map(|tree| Self(tree.into_value()))
    }
}

impl Deref for Wiped {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl DerefMut for Wiped {
    fn deref_mut(&mut self) -> &mut Value {
        &mut self.0
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        wipe(&mut self.0);
    }
}

/// A text that is written piece by piece. Its memory never grows in place, which would leave copies behind,
/// and is zeroed at its end.
#[derive(Default)]
pub(super) struct ZeroedPieces(Vec<Zeroizing<Vec<u8>>>);

impl ZeroedPieces {
    const BYTES: usize = 1 << 14;

    /// What was written.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|piece| &piece[..])
    }
}

impl Write for ZeroedPieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.last().is_none_or(|piece| piece.len() == Self::BYTES) {
            self.0.push(Zeroizing::new(Vec::with_capacity(Self::BYTES)));
        }
        let Some(piece) = self.0.last_mut() else { return Ok(0) };
        let taken = bytes.len().min(Self::BYTES - piece.len());
        piece.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// As deep as the parser lets a value be, which is 128 levels.
fn wipe(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(wipe),
        Value::Object(entries) => entries.values_mut().for_each(wipe),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A value while it is read: a part that is dropped takes its strings with it.
enum Tree {
    Plain(Value),
    Text(Zeroizing<String>),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

impl Tree {
    fn into_value(self) -> Value {
        match self {
            Self::Plain(value) => value,
            // Moved, not copied.
            Self::Text(mut text) => Value::String(std::mem::take(&mut *text)),
            Self::Array(items) => items.into_iter().map(Self::into_value).collect(),
            Self::Object(entries) => {
                let mut map = Map::new();
                for (key, tree) in entries {
                    // The last of several counts, as with `serde_json::Value`.
                    if let Some(mut earlier) = map.insert(key, tree.into_value()) {
                        wipe(&mut earlier);
                    }
                }
                Value::Object(map)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Plain(Value::Bool(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Plain(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Plain(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Tree, E> {
        Ok(Tree::Text(Zeroizing::new(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Tree::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Tree, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            object.push(entry);
        }
        Ok(Tree::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_read_as_serde_json_reads_it() {
        for text in [
            "{\"verb\":\"sa-add\",\"n\":[1,-2,3.5,1e999,null,true],\"deep\":{\"a\":{\"b\":\"c\"}}}",
            "{\"a\":1,\"a\":{\"a\":\"2\"},\"a\":\"3\"}",
            "\"\\u0041\\n\"",
            "",
            "{\"a\":\"x",
            "{\"a\" \"x\"}",
            "[1] 2",
            "18446744073709551616",
        ] {
            let expected: Option<Value> = serde_json::from_str(text).ok();
            let found = Wiped::parse(text.as_bytes()).ok().map(|value| value.clone());
            assert_eq!(found, expected, "{text}");
        }
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(Wiped::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_long_text_is_written_without_a_copy_of_what_was_written_before() {
        let text: Vec<u8> = (0..50_000_u32).map(|n| b'a' + u8::try_from(n % 26).unwrap()).collect();
        let mut written = ZeroedPieces::default();
        let mut places = Vec::new();
        for part in text.chunks(777) {
            written.write_all(part).unwrap();
            places.extend(written.0.first().map(|piece| piece.as_ptr()));
        }
        places.dedup();
        assert_eq!(places.len(), 1, "the first piece has moved");
        assert_eq!(written.pieces().collect::<Vec<_>>().concat(), text);
    }

    #[test]
    fn every_string_is_zeroed() {
        let mut value: Value = serde_json::json!({ "a": "key", "b": ["key", { "c": "key" }] });
        wipe(&mut value);
        assert_eq!(value, serde_json::json!({ "a": "", "b": ["", { "c": "" }] }));
    }
}
