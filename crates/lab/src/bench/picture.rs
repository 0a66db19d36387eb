//! A picture of several parts.

use super::bars::Bars;
use super::chart::{self, Drawn, Panel};

/// A part of a picture.
pub(crate) enum Part<'a> {
    Lines(&'a Panel),
    Bars(&'a Bars),
}

impl Part<'_> {
    fn draw(&self) -> Drawn {
        match self {
            Self::Lines(panel) => chart::draw(panel),
            Self::Bars(bars) => bars.draw(),
        }
    }
}

/// The picture (SVG 1.1), its parts one above the other.
pub(crate) fn svg(parts: &[Part<'_>]) -> String {
    chart::stacked(&parts.iter().map(Part::draw).collect::<Vec<_>>())
}
