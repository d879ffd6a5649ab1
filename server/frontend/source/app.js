// What all pages do in the browser, beside htmx.

// Libraries clear elements by innerHTML = "", and workers are files of the hub. Nothing else passes.
if (window.trustedTypes) {
  trustedTypes.createPolicy("default", {
    createHTML: (text) => (text === "" ? text : null),
    createScriptURL: (url) => (url.startsWith(`${document.documentElement.dataset.prefix ?? ""}/-/assets/`) ? url : null),
  });
}

document.addEventListener("click", (event) => {
  const target = event.target instanceof Element ? event.target : null;
  const toggle = target?.closest("[data-theme-toggle]");
  if (toggle) {
    const root = document.documentElement;
    const theme = root.dataset.bsTheme === "dark" ? "light" : "dark";
    root.dataset.bsTheme = theme;
    localStorage.setItem("theme", theme);
    document.dispatchEvent(new CustomEvent("theme"));
  }
  const copy = target?.closest("[data-copy]");
  if (copy instanceof HTMLElement) {
    navigator.clipboard.writeText(copy.dataset.copy ?? "").then(() => {
      copy.classList.add("copied");
      setTimeout(() => copy.classList.remove("copied"), 1500);
    });
  }
  // A menu closes when something else is clicked.
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target)) menu.removeAttribute("open");
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    for (const menu of document.querySelectorAll("details.menu[open]")) menu.removeAttribute("open");
  }
});

// A form with data-confirm asks before it is sent.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form instanceof HTMLFormElement && form.dataset.confirm && !confirm(form.dataset.confirm)) {
    event.preventDefault();
  }
});

// The address of a list names only what is set: a field that has the value it begins with is left
// out. This holds for htmx, too, which reads a form in the same way.
document.addEventListener("formdata", (event) => {
  if (!(event.target instanceof HTMLFormElement) || event.target.method !== "get") return;
  for (const field of event.target.elements) {
    const first = field.dataset.first ?? "";
    if (field.name && event.formData.get(field.name) === first) event.formData.delete(field.name);
  }
});

// A menu of a row opens over the page, below its button, because a table would cut it off.
document.addEventListener("beforetoggle", (event) => {
  const menu = event.target;
  if (!(menu instanceof HTMLElement) || !menu.matches(".menu-items[popover]") || event.newState !== "open") return;
  const button = document.querySelector(`[popovertarget="${CSS.escape(menu.id)}"]`);
  if (!button) return;
  const at = button.getBoundingClientRect();
  const { clientWidth } = document.documentElement;
  Object.assign(menu.style, {
    position: "absolute", margin: "0", height: "fit-content",
    inset: `${at.bottom + scrollY + 4}px ${Math.max(clientWidth - at.right, 4)}px auto auto`,
  });
}, true);
