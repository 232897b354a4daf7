//! The world: spools with a log that loses what was not synced, a bag of batches under way (which come in any
//! order, twice, late or never), a topic with its view, and a bag of answers. Words of spools go the same ways.

use holdfast_base::ids::Index;
use holdfast_base::random::Random;
use holdfast_base::stream;
use holdfast_scribe::batch::{self, Messages as Read, Position, SpoolId};
use holdfast_scribe::category::Category;
use holdfast_scribe::gather::{Messages, Round};
use holdfast_scribe::spool::{Kept, Numbered, Progress, Spool, decode_entry};
use holdfast_scribe::view::{self, CategoryView};
use holdfast_scribe::word::{Heard, Says, Word};
use holdfast_view::{Applied, View};
use std::collections::{BTreeMap, BTreeSet};

/// Beside the application: a directory, and the process that has it open.
pub struct Agent {
    /// What outlives its spool.
    name: String,
    pub spool: Spool,
    /// What survives a power cut, from the first entry that is kept.
    log: Vec<(Index, Vec<u8>)>,
    next_index: u64,
    waiting: Round,
    waiting_texts: Vec<(Category, Vec<u8>)>,
    /// What was answered with OK, of each category in its order; which identity had it.
    told: Vec<(SpoolId, Category, Vec<u8>)>,
    process: u64,
    /// What its process was told of its words.
    knows: BTreeMap<Category, Index>,
    /// Spools that were here before.
    before: Vec<SpoolId>,
}

/// A word under way, or what became of it.
#[derive(Clone)]
struct Spoken {
    agent: usize,
    process: u64,
    category: Category,
    word: Word,
    heard: Option<Heard>,
}

/// An answer under way: which agent's which process asked.
struct Answer {
    agent: usize,
    process: u64,
    /// Before which message its agent knew everything to be there when it asked.
    known: u64,
    category: Category,
    position: Position,
}

/// A batch under way, and which agent's process hears of it.
#[derive(Clone)]
pub struct Carried {
    pub agent: usize,
    process: u64,
    known: u64,
    pub bytes: Vec<u8>,
}

#[derive(Default)]
pub struct Seen {
    pub repeats: u64,
    pub early: u64,
    pub copies: u64,
    pub recovered: u64,
    pub trimmed: u64,
    pub lost: u64,
    pub late_words: u64,
    pub drained: u64,
}

pub struct World {
    pub agents: Vec<Agent>,
    topics: BTreeMap<Category, (CategoryView, Vec<Vec<u8>>)>,
    /// Batches under way.
    bag: Vec<Carried>,
    answers: Vec<Answer>,
    /// Directories that somebody erased, each with what it had been told was kept.
    erased: Vec<SpoolId>,
    copied: Vec<SpoolId>,
    /// Words under way, and answers to some.
    words: Vec<Spoken>,
    /// Spools whose process heard that it has begun, and of these the ones that ended since, with nothing more
    /// behind it.
    begun: BTreeSet<(SpoolId, Category)>,
    drained: BTreeSet<(SpoolId, Category)>,
    ids: u64,
    texts: u64,
    pub seen: Seen,
}

fn category(of: u64) -> Category {
    Category::new(["web", "Ads"][of as usize]).unwrap()
}

impl Agent {
    fn new(name: String, id: u64, process: u64) -> Agent {
        let mut agent = Agent {
            name,
            spool: Spool::new(SpoolId(id)),
            log: Vec::new(),
            next_index: 1,
            waiting: Round::default(),
            waiting_texts: Vec::new(),
            told: Vec::new(),
            process,
            knows: BTreeMap::new(),
            before: Vec::new(),
        };
        agent.keep_mark();
        agent
    }

    fn append(&mut self, entry: Vec<u8>) -> Index {
        let index = Index(self.next_index);
        self.next_index += 1;
        self.log.push((index, entry));
        index
    }

    fn keep_mark(&mut self) {
        let mark = self.spool.mark();
        let index = self.append(mark);
        self.spool.marked(index);
    }

    /// What a process that starts makes of the directory.
    fn recovered(&self) -> Spool {
        let mut spool = Spool::opening();
        for (index, entry) in &self.log {
            spool.recover(*index, entry).expect("nothing is damaged");
        }
        spool
    }
}

impl World {
    pub fn new(agents: u64) -> World {
        let all = (1..=agents).map(|id| Agent::new(id.to_string(), id, id)).collect();
        World {
            agents: all,
            topics: BTreeMap::new(),
            bag: Vec::new(),
            answers: Vec::new(),
            erased: Vec::new(),
            copied: Vec::new(),
            words: Vec::new(),
            begun: BTreeSet::new(),
            drained: BTreeSet::new(),
            ids: agents,
            texts: 0,
            seen: Seen::default(),
        }
    }

    /// A client's call, which waits for its sync.
    pub fn call(&mut self, agent: usize, messages: u64, of: u64) {
        for _ in 0..messages {
            self.texts += 1;
            let text = (category(of), self.texts.to_string().into_bytes());
            let agent = &mut self.agents[agent];
            agent.waiting.add(&Messages { messages: vec![text.clone()] });
            agent.waiting_texts.push(text);
        }
    }

    /// Group commit: what waits is kept, and its callers hear OK.
    pub fn sync(&mut self, agent: usize) {
        let agent = &mut self.agents[agent];
        let groups = std::mem::take(&mut agent.waiting).pack();
        let numbered: Vec<Numbered> = agent.spool.number(&groups);
        for group in &numbered {
            let index = agent.append(group.entry.clone());
            agent.spool.kept(index, group);
        }
        let id = agent.spool.id();
        let told = std::mem::take(&mut agent.waiting_texts).into_iter();
        agent.told.extend(told.map(|(category, text)| (id, category, text)));
    }

    /// Puts batches that the topic is not known to have onto the way.
    pub fn send(&mut self, at: usize, most: usize) {
        let agent = &self.agents[at];
        let Some(from) = agent.spool.first_to_send(&BTreeSet::new()) else { return };
        let mut sent = 0;
        for (index, entry) in agent.log.iter().filter(|(index, _)| *index >= from) {
            let Kept::Group(batches) = decode_entry(entry).unwrap() else { continue };
            for bytes in batches {
                let (head, _) = batch::decode(bytes).unwrap();
                if agent.spool.wants_to_send(*index, &head) && sent < most {
                    let known = agent.spool.delivered(&head.category).next;
                    let (process, bytes) = (agent.process, bytes.to_vec());
                    self.bag.push(Carried { agent: at, process, known, bytes });
                    sent += 1;
                }
            }
        }
    }

    /// Any of them arrives, now and perhaps again.
    pub fn deliver(&mut self, random: &mut Random) {
        if self.bag.is_empty() {
            return;
        }
        let at = random.below(self.bag.len() as u64) as usize;
        let Carried { agent, process, known, bytes } = match random.below(4) {
            0 => self.bag[at].clone(),
            _ => self.bag.swap_remove(at),
        };
        let (head, _) = batch::verify(&bytes).unwrap();
        let position = self.append(&head.category, bytes);
        let category = head.category;
        self.answers.push(Answer { agent, process, known, category, position });
    }

    fn append(&mut self, category: &Category, bytes: Vec<u8>) -> Position {
        let begin = || (CategoryView::begin(&view::context(category)), Vec::new());
        let (view, log) = self.topics.entry(category.clone()).or_insert_with(begin);
        let (head, _) = batch::decode(&bytes).unwrap();
        let before = view.position(head.spool);
        self.seen.repeats += u64::from(head.ends().next <= before.next);
        self.seen.early += u64::from(head.first > before.next);
        log.push(bytes);
        let index = Index(log.len() as u64);
        let Applied::Ok(position) = view.apply(index, log.last().unwrap()) else { panic!() };
        if view.has_taken(index) {
            self.drained.remove(&(head.spool, category.clone()));
        }
        view::decode_position(&position).unwrap()
    }

    /// An agent puts onto the way that its spool sends, of each of its categories.
    pub fn say(&mut self, at: usize) {
        let categories: Vec<Category> = self.agents[at].spool.categories().cloned().collect();
        for category in categories {
            let name = self.agents[at].name.clone();
            let word = self.word(at, &category, Says::Begins { name, unix_ms: 7 });
            self.words.push(word);
        }
    }

    fn word(&self, at: usize, category: &Category, says: Says) -> Spoken {
        let agent = &self.agents[at];
        let knows = agent.knows.get(category).copied().unwrap_or_default();
        let word = Word { spool: agent.spool.id(), knows, says };
        let (process, category) = (agent.process, category.clone());
        Spoken { agent: at, process, category, word, heard: None }
    }

    /// Any of them comes, now and perhaps again: to the topic, or its answer to who said it.
    pub fn deliver_word(&mut self, random: &mut Random) {
        if self.words.is_empty() {
            return;
        }
        let at = random.below(self.words.len() as u64) as usize;
        let mut spoken = match random.below(4) {
            0 => self.words[at].clone(),
            _ => self.words.swap_remove(at),
        };
        match spoken.heard.take() {
            Some(heard) => self.learn_word(&spoken, &heard),
            None => {
                let heard = Some(self.append_word(&spoken));
                self.words.push(Spoken { heard, ..spoken });
            }
        }
    }

    fn append_word(&mut self, spoken: &Spoken) -> Heard {
        let begin = || (CategoryView::begin(&view::context(&spoken.category)), Vec::new());
        let (view, log) = self.topics.entry(spoken.category.clone()).or_insert_with(begin);
        // As a node does it.
        let at_once = view.hear_at_once(&spoken.word).unwrap();
        let heard = at_once.unwrap_or_else(|| {
            log.push(spoken.word.encode());
            let index = Index(log.len() as u64);
            let Applied::Ok(heard) = view.apply(index, log.last().unwrap()) else { panic!() };
            Heard::decode(&heard).unwrap()
        });
        let key = (spoken.word.spool, spoken.category.clone());
        match &spoken.word.says {
            _ if !heard.counts => self.seen.late_words += 1,
            // What is there already changes nothing.
            Says::Begins { .. } if heard.entry.0 != log.len() as u64 => {}
            Says::Begins { .. } => drop(self.drained.remove(&key)),
            Says::Ends(_) => drop(self.drained.insert(key)),
        }
        for (lost, _) in &heard.lost {
            let is_gone = self.erased.contains(lost) || self.copied.contains(lost);
            assert!(is_gone, "spool {lost} is there, and counts as lost");
        }
        heard
    }

    fn learn_word(&mut self, spoken: &Spoken, heard: &Heard) {
        let Some(agent) = self.agents.get_mut(spoken.agent) else { return };
        if agent.process == spoken.process {
            agent.knows.insert(spoken.category.clone(), heard.entry);
            if heard.counts {
                self.begun.insert((spoken.word.spool, spoken.category.clone()));
            }
        }
    }

    /// An agent ends in order, with nothing left; its last words may be under way twice.
    pub fn end(&mut self, at: usize) {
        self.sync(at);
        if self.agents[at].spool.pending() > 0 {
            return;
        }
        let ends: Vec<(Category, Position)> =
            self.agents[at].spool.drained().map(|(of, position)| (of.clone(), position)).collect();
        for (category, position) in ends {
            for _ in 0..2 {
                let spoken = self.word(at, &category, Says::Ends(position));
                let heard = self.append_word(&spoken);
                self.learn_word(&spoken, &heard);
                self.words.push(spoken);
            }
        }
        self.seen.drained += 1;
        self.crash(at);
    }

    /// Every agent says that it is there, until it is heard.
    fn settle_words(&mut self, random: &mut Random) {
        for _ in 0..4 {
            for agent in 0..self.agents.len() {
                self.say(agent);
            }
            while !self.words.is_empty() {
                self.deliver_word(random);
            }
        }
    }

    /// Of an erased spool what had not arrived is named, if the topic ever heard of it and of one in its place;
    /// and nobody else is said to be lost.
    fn check_lost(&self, seed: u64) {
        for (category, (view, _)) in &self.topics {
            let lost: BTreeSet<SpoolId> = view.lost().map(|(spool, _, _)| spool).collect();
            let is_gone = |id: &&SpoolId| self.erased.contains(id) || self.copied.contains(id);
            assert!(lost.iter().all(|id| is_gone(&id)), "seed {seed}: {lost:?}");
            let has_begun = |id: &SpoolId| self.begun.contains(&(*id, category.clone()));
            for agent in &self.agents {
                let mut all = agent.before.clone();
                all.push(agent.spool.id());
                for (at, id) in agent.before.iter().enumerate() {
                    let is_followed = all[at + 1..].iter().any(has_begun);
                    if self.copied.contains(id) || !has_begun(id) || !is_followed {
                        continue;
                    }
                    let is_drained = self.drained.contains(&(*id, category.clone()));
                    assert_eq!(lost.contains(id), !is_drained, "seed {seed}: spool {id}");
                }
            }
        }
    }

    /// Any answer arrives. One that a process asked for that is gone arrives nowhere.
    pub fn answer(&mut self, random: &mut Random) {
        if self.answers.is_empty() {
            return;
        }
        let at = random.below(self.answers.len() as u64) as usize;
        let answer = self.answers.swap_remove(at);
        let Some(agent) = self.agents.get_mut(answer.agent) else { return };
        if agent.process == answer.process {
            let progress = agent.spool.hear(&answer.category, answer.position, answer.known);
            assert_ne!(progress, Progress::Behind, "topics lose nothing, and answers come late");
            self.seen.copies += u64::from(progress == Progress::Copied);
        }
    }

    /// An agent asks where it is, and hears it at once.
    pub fn ask(&mut self, agent: usize) {
        let agent = &mut self.agents[agent];
        let categories: Vec<Category> = agent.spool.categories().cloned().collect();
        for category in categories {
            let id = agent.spool.id();
            let known = self.topics.get(&category).map(|(view, _)| view.position(id));
            let progress = agent.spool.learn(&category, known.unwrap_or(Position::START));
            self.seen.copies += u64::from(progress == Progress::Copied);
        }
    }

    /// What it carried is lost, and so are answers.
    pub fn carrier_dies(&mut self, random: &mut Random) {
        self.bag.retain(|_| random.below(2) == 0);
        self.answers.retain(|_| random.below(2) == 0);
    }

    /// Everything that was not synced is gone; who waited hears nothing.
    pub fn crash(&mut self, at: usize) {
        self.ids += 1;
        let process = self.ids;
        let agent = &mut self.agents[at];
        agent.waiting = Round::default();
        agent.waiting_texts.clear();
        let before = agent.spool.id();
        agent.spool = agent.recovered();
        assert_eq!(agent.spool.id(), before);
        agent.process = process;
        agent.knows.clear();
        self.seen.recovered += u64::from(agent.spool.pending() > 0);
    }

    pub fn mark_and_trim(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        agent.keep_mark();
        let before = agent.spool.trim_before().expect("there is a mark");
        let kept = agent.log.len();
        agent.log.retain(|(index, _)| *index >= before);
        self.seen.trimmed += (kept - agent.log.len()) as u64;
    }

    /// Begins with its snapshot.
    pub fn topic_restarts(&mut self) {
        for (category, (view, _)) in &mut self.topics {
            let mut bytes = Vec::new();
            stream::collect(&mut bytes, |out| view.snapshot(out));
            let context = view::context(category);
            let restored =
                stream::read_all(&bytes, |source| CategoryView::restore(&context, source)).unwrap();
            assert_eq!(*view, restored);
            *view = restored;
        }
    }

    /// The directory is gone: whoever begins there is another spool.
    pub fn erase(&mut self, at: usize) {
        self.ids += 1;
        let erased = self.agents[at].spool.id();
        self.erased.push(erased);
        let told = std::mem::take(&mut self.agents[at].told);
        let mut before = std::mem::take(&mut self.agents[at].before);
        before.push(erased);
        let name = self.agents[at].name.clone();
        self.agents[at] = Agent { told, before, ..Agent::new(name, self.ids, self.ids) };
    }

    /// Somebody copies the directory to another machine, where it goes on.
    pub fn copy(&mut self, at: usize) {
        self.ids += 1;
        let of = &self.agents[at];
        self.copied.push(of.spool.id());
        let copy = Agent {
            name: self.ids.to_string(),
            before: Vec::new(),
            knows: BTreeMap::new(),
            spool: of.recovered(),
            log: of.log.clone(),
            next_index: of.next_index,
            waiting: Round::default(),
            waiting_texts: Vec::new(),
            told: of.told.clone(),
            process: self.ids,
        };
        self.agents.push(copy);
    }

    /// The faults are over.
    pub fn settle(&mut self, random: &mut Random) {
        for agent in 0..self.agents.len() {
            self.sync(agent);
        }
        for _ in 0..400 {
            for agent in 0..self.agents.len() {
                self.ask(agent);
                self.send(agent, 8);
            }
            while !self.bag.is_empty() {
                self.deliver(random);
            }
            while !self.answers.is_empty() {
                self.answer(random);
            }
            if self.agents.iter().all(|agent| agent.spool.first_to_send(&BTreeSet::new()).is_none())
            {
                return self.settle_words(random);
            }
        }
        panic!("it never comes to an end");
    }

    /// What readers of a category see, each with its spool.
    fn read(&self, category: &Category) -> Vec<(SpoolId, Vec<u8>)> {
        let Some((view, log)) = self.topics.get(category) else { return Vec::new() };
        let mut read = Vec::new();
        let mut from = Index(1);
        while let Some(index) = view.next_taken(from) {
            let bytes = &log[index.0 as usize - 1];
            from = Index(index.0 + 1);
            if !batch::is_one(bytes) {
                continue;
            }
            let (head, _) = batch::decode(bytes).unwrap();
            let messages = Read::of(bytes).unwrap();
            read.extend(messages.iter().map(|message| (head.spool, message.to_vec())));
        }
        read
    }

    pub fn check(&mut self, seed: u64) {
        self.check_lost(seed);
        self.seen.lost +=
            self.topics.values().map(|(view, _)| view.lost().count() as u64).sum::<u64>();
        for of in 0..2 {
            let category = category(of);
            let read = self.read(&category);
            let mut once: Vec<&Vec<u8>> = read.iter().map(|(_, text)| text).collect();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), read.len(), "seed {seed}: something is read twice");
            for agent in &self.agents {
                for (id, told) in told_of(agent, &category) {
                    let seen: Vec<_> =
                        read.iter().filter(|(of, _)| *of == id).map(|(_, text)| text).collect();
                    if self.copied.contains(&id) {
                        self.check_copied(seed, agent, &category, &told, &seen);
                    } else if self.erased.contains(&id) {
                        // What had not arrived is lost; what has is the beginning, in order.
                        assert!(told.iter().zip(&seen).all(|(a, b)| a == b), "seed {seed}");
                        assert!(seen.len() <= told.len(), "seed {seed}");
                    } else {
                        assert!(told.iter().eq(&seen), "seed {seed}: {told:?} {seen:?}");
                    }
                }
            }
        }
    }

    /// Each message that was taken is in the topic, or still with the agent, which says that it is a copy.
    fn check_copied(
        &self,
        seed: u64,
        agent: &Agent,
        category: &Category,
        told: &[&Vec<u8>],
        seen: &[&Vec<u8>],
    ) {
        if self.erased.contains(&agent.spool.id()) || told.iter().all(|text| seen.contains(text)) {
            return;
        }
        let id = agent.spool.id();
        if !self.copied.contains(&id) {
            // It was erased after it was copied.
            return;
        }
        assert!(agent.spool.copied().any(|copied| copied == category), "seed {seed}: unnoticed");
        let mut kept = Vec::new();
        for (_, entry) in &agent.log {
            let Kept::Group(batches) = decode_entry(entry).unwrap() else { continue };
            for bytes in batches {
                kept.extend(Read::of(bytes).unwrap().iter().map(<[u8]>::to_vec));
            }
        }
        for text in told {
            assert!(seen.contains(text) || kept.contains(text), "seed {seed}: {text:?} is lost");
        }
    }

    /// What a category's topic says is lost: which spool of which name, and from which message on.
    pub fn lost(&self, of: u64) -> Vec<(SpoolId, String, u64)> {
        let Some((view, _)) = self.topics.get(&category(of)) else { return Vec::new() };
        let lost = view.lost();
        lost.map(|(id, name, _)| (id, name.to_owned(), view.position(id).next)).collect()
    }

    /// For stories.
    pub fn bag(&mut self) -> &mut Vec<Carried> {
        &mut self.bag
    }

    pub fn texts(&self, of: u64) -> Vec<String> {
        let read = self.read(&category(of)).into_iter();
        read.map(|(_, text)| String::from_utf8(text).unwrap()).collect()
    }
}

/// What an agent's clients were told is kept, by the identity that it had then.
fn told_of<'a>(agent: &'a Agent, category: &Category) -> BTreeMap<SpoolId, Vec<&'a Vec<u8>>> {
    let mut told: BTreeMap<SpoolId, Vec<&Vec<u8>>> = BTreeMap::new();
    for (id, of, text) in &agent.told {
        if of == category {
            told.entry(*id).or_default().push(text);
        }
    }
    told
}
