//! The engines of our end.

use crate::support::config::{Config, gpu_lines};

/// Which engines a gateway has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engines {
    /// Those of a configuration that names none.
    Usual,
    /// A GPU (PoCL), and the portable engine for what it does not do.
    Gpu {
        /// Whether the GPU writes headers.
        headers: bool,
    },
}

impl Engines {
    /// The name of the GPU's engine, if there is one.
    pub fn gpu(self) -> Option<&'static str> {
        matches!(self, Self::Gpu { .. }).then_some("gpu")
    }

    fn lines_of_the_gpu(self) -> &'static str {
        if self == (Self::Gpu { headers: true }) { "gpu_headers = true\n" } else { "" }
    }

    /// What begins `[gateway]`, and the sections behind it.
    pub fn lines(self) -> [String; 2] {
        match self {
            Self::Usual => [String::new(), String::new()],
            Self::Gpu { .. } => gpu_lines(self.lines_of_the_gpu(), ""),
        }
    }

    /// A configuration with these engines.
    pub fn configure(self, mut config: Config) -> Config {
        if self.gpu().is_some() {
            config.with_gpu(self.lines_of_the_gpu(), "");
        }
        config
    }
}
