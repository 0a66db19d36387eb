//! Lists of processors, as the kernel writes them.

/// More processors than Linux can have: a list never gets longer.
const MAX_PROCESSORS: usize = 8192;

/// The processors of a list such as `0-3,8`. Nothing of it if it is no such list.
#[must_use]
pub fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MAX_PROCESSORS).then_some(first..=last)
    };
    let ranges: Option<Vec<_>> =
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(range).collect();
    let mut all: Vec<usize> = ranges.into_iter().flatten().flatten().collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Processors as a list, with ranges.
#[must_use]
pub fn ranges(processors: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for processor in processors {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *processor => *last = *processor,
            _ => runs.push((*processor, *processor)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_with_ranges() {
        assert_eq!(list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(ranges(&list("8,0-3,2")), "0-3,8");
        assert_eq!(list(""), [0_usize; 0]);
        for wrong in ["3-0", "x", "0-99999999999", "1,,x"] {
            assert_eq!(list(wrong), [0_usize; 0], "{wrong}");
        }
    }
}
