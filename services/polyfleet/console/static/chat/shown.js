// How a message looks. What a model writes is hostile: it becomes text, or Markdown of harmless elements, in its bubble.
"use strict";
const Shown = (() => {
  const MARKDOWN_MOST = 100000; // longer texts are shown as they are
  const TAGS = ["p", "br", "hr", "em", "strong", "del", "code", "pre", "blockquote", "ul", "ol", "li", "h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td", "a"];
  const HARMLESS = { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ["href", "class"], ALLOWED_URI_REGEXP: /^https?:/i, ALLOW_DATA_ATTR: false };

  DOMPurify.addHook("afterSanitizeAttributes", (node) => {
    if (node.tagName === "A") {
      node.setAttribute("target", "_blank");
      node.setAttribute("rel", "noopener noreferrer nofollow");
    }
    if (node.hasAttribute("class") && !/^language-[\w+#-]{1,20}$/.test(node.getAttribute("class"))) node.removeAttribute("class");
  });

  function markdown(element, text) {
    if (text.length > MARKDOWN_MOST) {
      element.textContent = text;
      element.classList.add("plain");
      return;
    }
    element.classList.remove("plain");
    element.innerHTML = DOMPurify.sanitize(marked.parse(text, { breaks: true, gfm: true }), HARMLESS);
  }

  // Colours code once an answer is whole: while it comes, that would be done anew for each token.
  function colour(element) {
    element.querySelectorAll("pre code").forEach((block) => {
      if (block.textContent.length < 20000) hljs.highlightElement(block);
    });
  }

  function button(label, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "quiet";
    made.textContent = label;
    made.addEventListener("click", act);
    return made;
  }

  // An element for a message; `acts` are [label, function] pairs, `branch` {at, of, move} where there are several.
  function message(node, who, texts, acts, branch) {
    const made = document.createElement("article");
    made.className = `message ${node.role}`;
    const head = document.createElement("header");
    head.textContent = who;
    const thoughts = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = texts.thoughts;
    const thought = document.createElement("div");
    thoughts.append(summary, thought);
    const body = document.createElement("div");
    body.className = "body";
    const foot = document.createElement("footer");
    const facts = document.createElement("span");
    facts.className = "facts-line";
    if (branch && branch.of > 1) {
      const place = document.createElement("span");
      place.textContent = ` ${branch.at + 1} / ${branch.of} `;
      const older = button("‹", () => branch.move(-1));
      const newer = button("›", () => branch.move(1));
      older.setAttribute("aria-label", texts.older);
      newer.setAttribute("aria-label", texts.newer);
      foot.append(older, place, newer);
    }
    acts.forEach(([label, act]) => foot.append(button(label, act)));
    foot.append(facts);
    made.append(head, thoughts, body, foot);
    const parts = { element: made, thoughts, thought, body, facts };
    fill(parts, node);
    if (node.role === "assistant") colour(body);
    return parts;
  }

  function fill(parts, node) {
    if (node.role === "user") parts.body.textContent = node.text;
    else markdown(parts.body, node.text);
    parts.thoughts.hidden = !node.thoughts;
    parts.thought.textContent = node.thoughts;
    parts.facts.textContent = node.facts;
  }

  return { message, fill, colour, button };
})();
