//! Packets for the tests of this crate.

/// The bytes that hexadecimal digits say; white space between them is skipped.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    assert!(digits.len().is_multiple_of(2), "whole bytes");
    digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}
