//! Conversations and the commands that change them.

use std::{fs, path::Path};

use djinn_model::Message;
use serde_json::{Value, json};

use super::{
    backend::{Answer, AnswerOptions, ChatBackend},
    command::{ChatLine, HELP},
};
use crate::{
    interrupt::Interrupt,
    output::{Failure, say},
};

/// Whether the chat continues after a line.
pub enum ChatFlow {
    /// The chat continues.
    Continue,
    /// The chat ends.
    End,
}

/// Conversations with one model, of which one is current.
pub struct Conversations<'a> {
    backend: ChatBackend<'a>,
    talks: Vec<Vec<Message>>,
    now: usize,
    options: AnswerOptions,
    interrupt: Interrupt,
    last: Option<Answer>,
}

impl<'a> Conversations<'a> {
    /// One empty conversation.
    pub fn new(backend: ChatBackend<'a>, options: AnswerOptions, interrupt: Interrupt) -> Self {
        Conversations {
            backend,
            talks: vec![Vec::new()],
            now: 0,
            options,
            interrupt,
            last: None,
        }
    }

    /// Prompt of the terminal.
    pub fn prompt(&self) -> String {
        match self.talks.len() {
            1 => "> ".to_owned(),
            _ => format!("{}> ", self.now),
        }
    }

    /// Messages of the current conversation.
    fn messages(&mut self) -> &mut Vec<Message> {
        &mut self.talks[self.now]
    }

    /// Runs a command, or answers a message.
    pub fn hear(&mut self, line: &str) -> Result<ChatFlow, Failure> {
        let line: ChatLine = line.parse().map_err(Failure::Message)?;
        let output = match line {
            ChatLine::Message(text) => return self.ask(&text).map(|()| ChatFlow::Continue),
            ChatLine::Retry => return self.retry().map(|()| ChatFlow::Continue),
            ChatLine::Quit => return Ok(ChatFlow::End),
            ChatLine::Help => help(),
            ChatLine::System(text) => self.set_system(text)?,
            ChatLine::Save(file) => self.save(&file)?,
            ChatLine::Load(file) => self.load(&file)?,
            ChatLine::Fork => self.fork()?,
            ChatLine::Switch(number) => self.switch(number)?,
            ChatLine::Undo => self.undo()?,
            ChatLine::Clear => {
                self.messages().retain(|message| message.role == "system");
                "the conversation is empty\n".to_owned()
            }
            ChatLine::Show => self.show(),
            ChatLine::Tokens => self.tokens()?,
            ChatLine::Temperature(x) => {
                self.choose(|options| options.sampling.temperature = Some(x))
            }
            ChatLine::TopP(p) => self.choose(|options| options.sampling.top_p = Some(p)),
            ChatLine::Seed(seed) => self.choose(|options| options.sampling.seed = Some(seed)),
            ChatLine::Max(most) => {
                self.options.max_tokens = Some(most);
                String::new()
            }
        };
        say(&output)?;
        Ok(ChatFlow::Continue)
    }

    fn choose(&mut self, change: impl FnOnce(&mut AnswerOptions)) -> String {
        change(&mut self.options);
        self.options.version += 1;
        String::new()
    }

    /// Asks a question and prints the answer as it is generated.
    fn ask(&mut self, text: &str) -> Result<(), Failure> {
        let is_chat = self.backend.info.has_chat;
        if is_chat && text.trim().is_empty() {
            return Ok(());
        }
        if !text.is_empty() {
            let text = match is_chat {
                true => text.to_owned(),
                false => spaced(self.messages(), text),
            };
            self.messages().push(message("user", text));
        }
        let answered = self.answer();
        if answered.is_err() && !text.is_empty() {
            // A question without an answer is removed.
            self.messages().pop();
        }
        answered
    }

    fn answer(&mut self) -> Result<(), Failure> {
        let tokens = self.prompt_tokens()?;
        self.interrupt.clear();
        let answer = self.backend.answer(
            self.now,
            &tokens,
            &self.options,
            &self.interrupt,
            &mut |text| say(text),
        )?;
        say("\n")?;
        if let Some(cut) = &answer.cut {
            eprintln!("({cut})");
        }
        let text = match self.backend.info.has_chat {
            true => answer.text.trim().to_owned(),
            false => answer.text.clone(),
        };
        self.messages().push(message("assistant", text));
        self.last = Some(answer);
        Ok(())
    }

    /// Tokens of the messages through the chat template, or of the text so far.
    fn prompt_tokens(&mut self) -> Result<Vec<u32>, Failure> {
        let said = self.talks[self.now].clone();
        match self.backend.info.has_chat {
            true => self.backend.chat_tokens(&said),
            false => {
                let text: String = said.into_iter().map(|message| message.content).collect();
                self.backend.text_tokens(&text)
            }
        }
    }

    fn retry(&mut self) -> Result<(), Failure> {
        match self.messages().pop() {
            Some(last) if last.role == "assistant" => {
                // A new session samples again; the old one would repeat its answer.
                self.options.version += 1;
                self.answer()
            }
            other => {
                self.messages().extend(other);
                Err(Failure::Message("there is no answer to retry".into()))
            }
        }
    }

    fn undo(&mut self) -> Result<String, Failure> {
        let asked = self.messages().iter().rposition(|m| m.role == "user");
        let Some(asked) = asked else {
            return Err(Failure::Message("there is no question to remove".into()));
        };
        self.messages().truncate(asked);
        Ok("the last question is removed\n".to_owned())
    }

    /// Sets the system message, or removes it.
    pub fn set_system(&mut self, text: Option<String>) -> Result<String, Failure> {
        if !self.backend.info.has_chat {
            return Err(Failure::Message(
                "this model has no chat template, so it takes no system message".into(),
            ));
        }
        self.messages().retain(|message| message.role != "system");
        if let Some(text) = text {
            self.messages().insert(0, message("system", text));
        }
        Ok(String::new())
    }

    fn fork(&mut self) -> Result<String, Failure> {
        let to = self.talks.len();
        self.backend.fork(self.now, to)?;
        self.talks.push(self.talks[self.now].clone());
        let from = std::mem::replace(&mut self.now, to);
        Ok(format!(
            "now in conversation {to}; /switch {from} returns to conversation {from}\n"
        ))
    }

    fn switch(&mut self, number: usize) -> Result<String, Failure> {
        if number >= self.talks.len() {
            let last = self.talks.len() - 1;
            return Err(Failure::Message(format!(
                "no conversation {number}: use 0 to {last}"
            )));
        }
        self.now = number;
        Ok(self.show())
    }

    fn show(&mut self) -> String {
        let line = |m: &Message| format!("{:>9}: {}\n", m.role, m.content.trim());
        match self.messages().is_empty() {
            true => "the conversation is empty\n".to_owned(),
            false => self.messages().iter().map(line).collect(),
        }
    }

    fn tokens(&mut self) -> Result<String, Failure> {
        let context = self.backend.info.limits.unwrap_or_default().context;
        let count = match self.messages().is_empty() {
            true => 0,
            false => self.prompt_tokens()?.len(),
        };
        let mut text = format!("{count} tokens of {context}\n");
        if let Some(last) = &self.last {
            let rate = last.tokens as f64 / last.seconds.max(1e-9);
            text += &format!("the last answer has {}, {rate:.1} tokens/s", last.tokens);
            text += &match last.cached {
                0 => "\n".to_owned(),
                cached => format!("; {cached} tokens before it came from the prefix cache\n"),
            };
        }
        Ok(text)
    }

    fn save(&mut self, file: &Path) -> Result<String, Failure> {
        let one = |m: &Message| json!({ "role": m.role, "content": m.content });
        let messages: Vec<Value> = self.messages().iter().map(one).collect();
        let all = json!({ "model": self.backend.info.name, "messages": messages });
        let written = fs::write(file, format!("{all:#}\n"));
        written.map_err(|error| Failure::Message(format!("{}: {error}", file.display())))?;
        Ok(format!(
            "{} messages written to {}\n",
            messages.len(),
            file.display()
        ))
    }

    /// Loads a conversation from a file that /save wrote.
    pub fn load(&mut self, file: &Path) -> Result<String, Failure> {
        let wrong = |what: String| Failure::Message(format!("{}: {what}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        let all: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let messages = all["messages"].as_array();
        let messages = messages.ok_or_else(|| {
            wrong("the file has no list of messages; use a file that /save wrote".to_owned())
        })?;
        let one = |m: &Value| {
            let (role, content) = (m["role"].as_str()?, m["content"].as_str()?);
            Some(message(role, content.to_owned()))
        };
        let said: Option<Vec<Message>> = messages.iter().map(one).collect();
        *self.messages() = said.ok_or_else(|| {
            wrong("a message has no role or content; use a file that /save wrote".to_owned())
        })?;
        Ok(self.show())
    }
}

fn message(role: &str, content: String) -> Message {
    Message {
        role: role.to_owned(),
        content,
    }
}

/// Text that follows other text, with a space between them if there is none.
fn spaced(said: &[Message], text: &str) -> String {
    let ends = said
        .last()
        .is_some_and(|m| !m.content.ends_with(char::is_whitespace));
    match ends && !text.starts_with(char::is_whitespace) {
        true => format!(" {text}"),
        false => text.to_owned(),
    }
}

fn help() -> String {
    let width = HELP.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, does): &(&str, &str)| format!("{name:<width$}  {does}\n");
    HELP.iter().map(line).collect()
}
