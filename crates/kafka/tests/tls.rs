//! Brokers that are spoken with over TLS, and know their users by SCRAM: what `log_client` is for.
#![cfg(feature = "tls")]

use holdfast_base::ids::Index;
use holdfast_base::{Kind, Result};
use holdfast_brokers::Brokers;
use holdfast_cert::{AUTHORITY_DAYS, Authority, Wanted, new_authority};
use holdfast_kafka::{Expected, KafkaLog, Options};
use holdfast_log::{Log, Mode, Scope, SharedLog};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::SystemTime;

fn now_s() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64
}

/// A CA's certificate, and a broker's key with what leads to that CA, as files.
fn authority(place: &Path, name: &str) -> (PathBuf, PathBuf) {
    let ca = new_authority(name, AUTHORITY_DAYS, now_s(), [7; 16]).unwrap();
    let authority = Authority::load(ca.certificate.pem().as_bytes(), ca.key.pem()).unwrap();
    let wanted = Wanted::node(name, "broker", &["127.0.0.1".to_owned()]).unwrap();
    let broker = authority.issue(&wanted, None, now_s(), [8; 16]).unwrap();
    let (trusted, own) = (place.join(format!("{name}.pem")), place.join(format!("{name}-own.pem")));
    std::fs::write(&trusted, ca.certificate.pem()).unwrap();
    let both = [broker.key.pem(), broker.certificate.pem().as_bytes()].concat();
    std::fs::write(&own, both).unwrap();
    (trusted, own)
}

fn open(brokers: &Brokers, ca: &Path, password: &str) -> Result<KafkaLog> {
    let client = [
        ("security.protocol", "SASL_SSL"),
        ("ssl.ca.location", ca.to_str().unwrap()),
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.username", "node"),
        ("sasl.password", password),
    ];
    let client = client.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let address = format!("kafka://{}/tls", brokers.addresses());
    KafkaLog::open(Options::parse(&address, client.into()).unwrap(), Expected::Any(7))
}

#[test]
fn brokers_are_believed_by_their_authority_and_believe_a_password() {
    let place = std::env::temp_dir().join(format!("holdfast-kafka-tls-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let (trusted, own) = authority(&place, "right");
    let (other, _) = authority(&place, "wrong");
    let login = "org.apache.kafka.common.security.plain.PlainLoginModule required";
    let scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let admin_login = format!("{login} username=\"admin\" password=\"a\"");
    let settings = [
        "listener.security.protocol.map=B:SASL_SSL,C:PLAINTEXT".to_owned(),
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512".to_owned(),
        "sasl.mechanism.inter.broker.protocol=PLAIN".to_owned(),
        format!("listener.name.b.plain.sasl.jaas.config={admin_login} user_admin=\"a\";"),
        format!("listener.name.b.scram-sha-512.sasl.jaas.config={scram}"),
        format!("ssl.keystore.type=PEM\nssl.keystore.location={}", own.display()),
        format!("ssl.truststore.type=PEM\nssl.truststore.location={}", trusted.display()),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let Some(brokers) = Brokers::start(1, &settings) else { return };
    let admin = format!(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={admin_login};\n\
         ssl.truststore.type=PEM\nssl.truststore.location={}\n",
        trusted.display()
    );
    brokers.know("node", "secret", &admin);
    let log = open(&brokers, &trusted, "secret").unwrap();
    log.create("t").unwrap();
    let (told, answer) = channel();
    let entries = vec![b"one".to_vec(), b"two".to_vec()];
    log.append("t", entries, Mode::Synced, Box::new(move |done| told.send(done).unwrap()));
    assert_eq!(answer.recv().unwrap().unwrap().last(), Index(2));
    assert_eq!(log.fetch("t", Index(1), 9, 99).unwrap().len(), 2);
    let (told, answer) = channel();
    log.tail("t", Index(2), Box::new(move |done| told.send(done).unwrap()));
    answer.recv().unwrap().unwrap();
    assert_eq!(log.read("t", Index(2), 9, 99, Scope::Durable).unwrap().len(), 1);
    // Each says what is wrong, and may pass: somebody is about to mend it.
    for (ca, password, said) in
        [(&other, "secret", "ssl.ca.location"), (&trusted, "other", "invalid credentials")]
    {
        let refused = open(&brokers, ca, password).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind, Kind::Retry, "{refused}");
        assert!(refused.message.contains(said), "{refused}");
    }
    std::fs::remove_dir_all(&place).unwrap();
}
