// What the theme leaves out for people who use a keyboard or a screen reader.
function mend() {
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0; // can be scrolled with the arrow keys
  }
  // Landmarks need names of their own.
  const names = new Map();
  for (const menu of document.querySelectorAll("nav")) {
    const label = document.getElementById(menu.getAttribute("aria-labelledby"))?.textContent.trim();
    menu.dataset.name ??= label || menu.getAttribute("aria-label") || "Code";
    const count = (names.get(menu.dataset.name) ?? 0) + 1;
    names.set(menu.dataset.name, count);
    const name = count > 1 ? `${menu.dataset.name} ${count}` : menu.dataset.name;
    menu.removeAttribute("aria-labelledby");
    if (menu.getAttribute("aria-label") !== name) menu.setAttribute("aria-label", name);
  }
}

addEventListener("load", () => {
  mend();
  new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
});
addEventListener("resize", mend);
