//! What the operator writes.

use testudo_control::Configuration;

/// Any text is a configuration or a list of errors, each within the text.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(errors) = Configuration::parse(&text, "fuzz.toml") {
        assert!(!errors.errors().is_empty());
        assert!(!errors.to_string().is_empty() && !errors.to_json().is_empty());
        let lines = text.lines().count() + 1;
        for error in errors.errors() {
            assert!(error.line <= lines, "line {} of {lines}", error.line);
        }
    }
}
