//! Tables on standard output.

use serde_json::Value;
use testudo_lab::table::{Table, grouped};

/// Prints a table to standard output.
pub fn print(table: &Table) {
    crate::out::write(&table.to_string());
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
