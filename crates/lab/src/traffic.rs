//! Traffic as users send it: TCP streams, ping, UDP. Each generator measures, and checks that the data
//! arrives.
//!
//! All of them take only namespaces and addresses, so a bare link, Testudo and any other gateway are measured
//! alike.

mod echo;
mod pattern;
mod ping;
mod stream;
mod tcp;

pub use echo::udp_echo;
pub(crate) use pattern::Pattern;
pub(crate) use ping::{echo_answers, echo_request};
pub use ping::{ping, ping_from};
pub use stream::{End, Load, Stream};
pub use tcp::{TcpLoad, TcpStreamResult, tcp_load, tcp_stream, tcp_streams};
pub(crate) use tcp::{gbit_s, portless};

use std::time::Duration;

/// Times of the answered round trips, and the number of lost ones.
#[derive(Debug, Clone, Default)]
pub struct RoundTrips {
    /// Of each answer, in the order sent.
    pub times: Vec<Duration>,
    /// Requests not answered in time.
    pub lost: usize,
}

impl RoundTrips {
    /// The median in milliseconds; `None` if nothing was answered.
    pub fn median_ms(&self) -> Option<f64> {
        median(&self.times.iter().map(|time| time.as_secs_f64() * 1e3).collect::<Vec<_>>())
    }
}

/// The middle of `values`, or the mean of the two middle ones; `None` if there are none.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_its_two_middles() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn one_slow_answer_does_not_move_the_round_trip() {
        let times = [1, 1, 500].map(Duration::from_millis).to_vec();
        assert_eq!(RoundTrips { times, lost: 0 }.median_ms(), Some(1.0));
    }
}
