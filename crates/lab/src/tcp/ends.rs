//! Who has which processors: the ends of a stream, apart where that can be.

use super::options::TcpOptions;
use crate::bench::BenchError;
use crate::bench::threads::processors;

/// The processors of the sending and of the receiving end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ends {
    /// Both have all of them unless they are apart.
    pub(super) processors: [Vec<usize>; 2],
    /// Whether each end is bound to processors of its own, whose states are its own then.
    pub(super) are_apart: bool,
}

impl Ends {
    /// Of the processors that this process may use: apart where there are two, unless `options` say no.
    ///
    /// # Errors
    /// `--pin` with one processor.
    pub(super) fn choose(options: &TcpOptions) -> Result<Self, BenchError> {
        Self::of(options, &processors())
    }

    fn of(options: &TcpOptions, all: &[usize]) -> Result<Self, BenchError> {
        let (first, second) = all.split_at(all.len() / 2);
        match (first.is_empty(), options.pin, options.no_pin) {
            (false, _, false) => Ok(Self { processors: [first.to_vec(), second.to_vec()], are_apart: true }),
            (true, true, _) => Err(BenchError::Usage("--pin needs two processors".to_owned())),
            _ => Ok(Self { processors: [all.to_vec(), all.to_vec()], are_apart: false }),
        }
    }

    /// The processors of each end, if they are bound to them.
    pub(super) fn pinned(&self) -> Option<[&[usize]; 2]> {
        let [a, b] = &self.processors;
        self.are_apart.then_some([a.as_slice(), b.as_slice()])
    }

    /// Why an end's threads, so many, cannot all run at once; `None` if they can.
    pub(super) fn shared(&self, threads_of_end: usize) -> Option<String> {
        let [a, b] = self.processors.each_ref().map(Vec::len);
        let (whose, threads, processors) = match self.are_apart {
            true => ("an end has", threads_of_end, a.min(b)),
            false => ("both ends together have", 2 * threads_of_end, a),
        };
        let advice = if self.are_apart { ", which costs throughput that --no-pin may have" } else { "" };
        let text =
            format!("cores shared: {whose} {threads} threads and fewer processors ({processors}){advice}");
        (threads > processors).then_some(text)
    }

    /// What processors' states are of.
    pub(super) const fn words(&self) -> &'static str {
        let [first, _] = &self.processors;
        match (self.are_apart, first.len()) {
            (true, _) => {
                "each end has processors of its own; the kernel's work for a packet of a virtual cable is done at its sender"
            }
            (false, 1) => {
                "ends cannot be told apart: there is one processor, and its states are those of both"
            }
            (false, _) => {
                "ends are not told apart: both run on all processors, whose states are those of both"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: TcpOptions,
    }

    fn ends(words: &str, all: &[usize]) -> Result<Ends, BenchError> {
        let words = ["tcp"].into_iter().chain(words.split_whitespace());
        Ends::of(&Program::parse_from(words).options, all)
    }

    #[test]
    fn ends_are_apart_wherever_there_are_two_processors_unless_told() {
        for words in ["", "--pin"] {
            let found = ends(words, &[1, 3, 4]).unwrap();
            assert_eq!((&found.processors, found.are_apart), (&[vec![1], vec![3, 4]], true));
            assert_eq!(found.pinned(), Some([&[1][..], &[3, 4]]));
        }
        let together = ends("--no-pin", &[1, 3]).unwrap();
        assert_eq!((&together.processors, together.pinned()), (&[vec![1, 3], vec![1, 3]], None));
        assert!(together.words().starts_with("ends are not told apart"));
        let one = ends("", &[7]).unwrap();
        assert_eq!((&one.processors, one.are_apart), (&[vec![7], vec![7]], false));
        assert!(one.words().starts_with("ends cannot be told apart: there is one processor"));
        assert!(ends("--pin", &[7]).unwrap_err().to_string().contains("--pin needs two processors"));
        assert!(Program::try_parse_from(["tcp", "--pin", "--no-pin"]).is_err());
    }

    /// A stream and a gateway's worker on one processor take it from each other, bound to it or not.
    #[test]
    fn threads_of_an_end_that_outnumber_its_processors_share_them() {
        let shared = |words, all: &[usize], threads| ends(words, all).unwrap().shared(threads);
        assert_eq!(shared("", &[0, 1], 1), None, "plain IP: a stream at each end");
        let said = shared("", &[0, 1], 2).unwrap();
        assert!(said.starts_with("cores shared: an end has 2 threads and fewer processors (1), which costs"));
        assert_eq!(shared("", &[0, 1, 2, 3], 2), None);
        assert!(shared("", &[0, 1, 2, 3, 4], 3).is_some(), "the smaller half counts");
        assert!(shared("--no-pin", &[0, 1, 2], 2).unwrap().contains("both ends together have 4 threads"));
        assert_eq!(shared("--no-pin", &[0, 1, 2, 3], 2), None);
    }
}
