//! "Did you mean": the candidate nearest to what was written.

/// Candidates are at most this many edits away.
const MAX_EDITS: usize = 3;

/// The candidate nearest to `word` by edits (insert, delete, replace, swap neighbours), if it is near at all.
pub(super) fn nearest<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let word: Vec<char> = word.chars().take(65).map(|c| c.to_ascii_lowercase()).collect();
    // A third of the letters may be wrong, or it is another word.
    let limit = word.len().div_ceil(3).min(MAX_EDITS);
    let near = candidates.into_iter().filter_map(|c| Some((edits(&word, c, limit)?, c)));
    near.min().map(|(_, candidate)| candidate)
}

/// "did you mean `…`?", if there is a candidate near enough.
pub(super) fn did_you_mean<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    nearest(word, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

/// Edits from `word` to `candidate`, unless more than `limit`: optimal string alignment distance.
fn edits(word: &[char], candidate: &str, limit: usize) -> Option<usize> {
    let candidate: Vec<char> = candidate.chars().take(65).collect();
    if word.len().abs_diff(candidate.len()) > limit {
        return None;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=candidate.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in candidate.iter().enumerate() {
            let replaced = above[j] + usize::from(a != b);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == candidate[j - 1] && word[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        if row.iter().all(|cell| *cell > limit) {
            return None;
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().filter(|count| *count <= limit)
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
    fn another_word_finds_nothing() {
        assert_eq!(nearest("banana", ["local", "remote"]), None);
        assert_eq!(nearest("", ["local"]), None);
    }
}
