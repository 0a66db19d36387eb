//! "Did you mean": the candidate nearest to what was written.

use super::value::MAX_NAME_CHARS;

/// Edits between a word and its suggestion at most.
const MAX_EDITS: usize = 3;

/// The candidate with the fewest edits (insert, delete, replace, swap neighbours) from `word`, if it is near
/// enough.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    // No candidate is longer than a tunnel's name, so that cutting the word here changes no result.
    let word: String = word.chars().take(2 * MAX_NAME_CHARS).map(|c| c.to_ascii_lowercase()).collect();
    let letters = word.chars().count();
    // With more than a third of its letters wrong, it is a different word.
    let limit = letters.div_ceil(3).min(MAX_EDITS);
    let is_near = |c: &&str| c.chars().count().abs_diff(letters) <= limit;
    let edits = candidates.into_iter().filter(is_near).map(|c| (strsim::osa_distance(&word, c), c));
    edits.filter(|(count, _)| *count <= limit).min().map(|(_, candidate)| candidate)
}

/// "did you mean `…`?", if there is a candidate near enough.
pub(crate) fn did_you_mean<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    nearest(word, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_mistakes_find_their_word() {
        let words = ["replay_window", "remote", "local", "remote_port"];
        assert_eq!(nearest("replay-window", words), Some("replay_window"));
        assert_eq!(nearest("rmeote", words), Some("remote"));
        assert_eq!(nearest("Local", words), Some("local"));
        assert_eq!(nearest("remote_prot", words), Some("remote_port"));
    }

    #[test]
    fn a_different_word_gets_no_suggestion() {
        assert_eq!(nearest("banana", ["local", "remote"]), None);
        assert_eq!(nearest("", ["local"]), None);
    }
}
