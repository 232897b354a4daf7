//! Lines as web servers log them, drawn by a seed: few clients and pages are most of them, every line has
//! something of its own. All of one length.

use holdfast_base::random::Random;

/// Of each line, without its end.
pub const BYTES: usize = 300;

/// Draws one line after the other.
pub struct Lines {
    random: Random,
    second: u64,
}

const WORDS: [&str; 16] = [
    "photos", "friends", "home", "profile", "static", "album", "events", "groups", "search", "api",
    "inbox", "notes", "video", "apps", "help", "ads",
];
const AGENTS: [&str; 6] = [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.1 Safari/605.1.15",
    "Mozilla/5.0 (X11; Linux x86_64; rv:121.0) Gecko/20100101 Firefox/121.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 17_1 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "curl/8.4.0",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
];

impl Lines {
    pub fn new(seed: u64) -> Lines {
        Lines { random: Random::new(seed), second: 0 }
    }

    /// Small numbers come most.
    fn skewed(&mut self, below: u64) -> u64 {
        let bound = 1 + self.random.below(below);
        self.random.below(bound)
    }

    fn word(&mut self) -> &'static str {
        WORDS[self.skewed(WORDS.len() as u64) as usize]
    }

    pub fn line(&mut self) -> Vec<u8> {
        self.second += u64::from(self.random.below(40) == 0);
        let (client, page) = (self.skewed(20_000), self.skewed(5000));
        let (first, second) = (self.word(), self.word());
        let status = [200, 200, 200, 200, 304, 404, 302, 500][self.skewed(8) as usize];
        let bytes = self.skewed(100_000);
        let (minute, s) = (self.second / 60 % 60, self.second % 60);
        let (id, us) = (self.random.next(), self.random.below(900_000));
        let agent = AGENTS[self.skewed(AGENTS.len() as u64) as usize];
        let mut line = format!(
            "10.{}.{}.{} - - [22/Nov/2026:13:{minute:02}:{s:02} +0000] \"GET /{first}/{second}/{page} HTTP/1.1\" \
             {status} {bytes} \"http://www.example.com/{first}/\" \"{agent}\" rt={us} id={id:016x} ",
            client >> 16,
            client >> 8 & 255,
            client & 255
        );
        while line.len() < BYTES {
            line.push_str("upstream=10.1.2.3:8080 cache=MISS tls=1.3 ");
        }
        line.truncate(BYTES);
        line.into_bytes()
    }
}
