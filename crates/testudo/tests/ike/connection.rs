//! A connection of strongSwan, as both ends configure it.

/// Between the networks 10.1.0.0/16 and 10.2.0.0/16, by AES-GCM and a shared secret, unless it says
/// otherwise.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Of the IKE_SA: lines of both ends.
    pub ike: String,
    /// Lines of A's and of B's IKE_SA.
    pub ike_of: [String; 2],
    /// Of the CHILD_SA: lines of both ends.
    pub child: String,
    pub esp: String,
    /// Traffic selectors of A and of B; empty for the hosts themselves.
    pub selectors: [String; 2],
    pub addresses: [String; 2],
    /// `auth` and `certs` of A and B.
    pub auth: [String; 2],
    /// Sections of both ends beside it.
    pub more: String,
    /// The same of A and of B.
    pub more_of: [String; 2],
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            ike: String::new(),
            ike_of: Default::default(),
            child: String::new(),
            esp: "aes128gcm16-x25519".to_owned(),
            selectors: ["10.1.0.0/16", "10.2.0.0/16"].map(str::to_owned),
            addresses: ["192.0.2.1", "192.0.2.2"].map(str::to_owned),
            auth: ["auth = psk", "auth = psk"].map(str::to_owned),
            more: String::new(),
            more_of: Default::default(),
        }
    }
}

impl Connection {
    /// With this proposal for ESP.
    pub fn esp(esp: &str) -> Self {
        Self { esp: esp.to_owned(), ..Self::default() }
    }

    /// With these lines of the CHILD_SA.
    pub fn child(lines: &str) -> Self {
        Self { child: lines.to_owned(), ..Self::default() }
    }

    /// Between the hosts themselves.
    pub fn transport() -> Self {
        let selectors = Default::default();
        Self { child: "mode = transport".to_owned(), selectors, ..Self::default() }
    }

    pub fn of_a(&self) -> String {
        self.of(0, 1)
    }

    pub fn of_b(&self) -> String {
        self.of(1, 0)
    }

    fn of(&self, own: usize, other: usize) -> String {
        const NAMES: [&str; 2] = ["a.example", "b.example"];
        let Self { ike, ike_of, child, esp, selectors, addresses, auth, more, more_of } = self;
        let selector = |name: &str, text: &str| match text {
            "" => String::new(),
            text => format!("{name} = {text}"),
        };
        format!(
            "connections {{ net {{\n\
             version = 2\n local_addrs = {}\n remote_addrs = {}\n\
             proposals = aes128gcm16-prfsha256-x25519\n mobike = no\n{ike}\n{}\n\
             local {{ id = {}\n {} }}\n remote {{ id = {}\n {} }}\n\
             children {{ net {{\n{}\n{}\n esp_proposals = {esp}\n rekey_time = 0\n{child}\n}} }}\n\
             }} }}\n\
             secrets {{ ike-net {{ id-a = {}\n id-b = {}\n secret = \"of both\" }} }}\n{more}\n{}\n",
            addresses[own],
            addresses[other],
            ike_of[own],
            NAMES[own],
            auth[own],
            NAMES[other],
            auth[other].lines().next().unwrap_or_default(),
            selector("local_ts", &selectors[own]),
            selector("remote_ts", &selectors[other]),
            NAMES[0],
            NAMES[1],
            more_of[own],
        )
    }
}
