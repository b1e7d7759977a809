"""Strings that must stay text wherever they are shown: markup, script ends, quotes, formulas, bidi and control characters."""

MARK = "__pwned__"  # what a string would set on `window` if it ever ran

_RUN = f"window.{MARK}=1"
_TAGS = (
    f"<script>{_RUN}</script>",
    f"</script><script>{_RUN}</script>",
    f"</SCRIPT ><script>{_RUN}</script>",
    f"<!--<script>{_RUN}</script>-->",
    f"<!-- </script><script>{_RUN}//-->",
    f"<img src=x onerror={_RUN}>",
    f'"><img src=x onerror="{_RUN}">',
    f"'><svg/onload={_RUN}>",
    f"<svg><script>{_RUN}</script></svg>",
    f"<math><mtext></mtext><script>{_RUN}</script></math>",
    f"<iframe srcdoc='<script>parent.{MARK}=1</script>'></iframe>",
    f"<a href='javascript:{_RUN}'>x</a>",
    f"<body onload={_RUN}>",
    f"<details open ontoggle={_RUN}>",
    f"<style>@import 'data:text/css,*{{}}'</style><x onclick={_RUN}>",
    f"</title><script>{_RUN}</script>",
    f"</textarea><script>{_RUN}</script>",
    f"</style><script>{_RUN}</script>",
    f"<base href='http://127.0.0.1:9/'><script>{_RUN}</script>",
    f"<meta http-equiv=refresh content='0;url=javascript:{_RUN}'>",
    f"<object data='data:text/html,<script>{_RUN}</script>'>",
    f"<form action='javascript:{_RUN}'><button autofocus>",
    f"<input autofocus onfocus={_RUN}>",
    f"<template><script>{_RUN}</script></template>",
)
_TEXT = (
    "$x$", "$$\\int_0^1$$", "\\(a\\)", "`code`", "**bold**", "[a](javascript:alert(1))", "{{7*7}}", "${7*7}", "#{7*7}", "<%= 7*7 %>",
    "&lt;b&gt;", "&amp;amp;", "&#60;script&#62;", "\\u003cscript\\u003e", "%3Cscript%3E", '"', "'", "`", "\\", "\\\\", '\\"', "</", "<", ">", "&",
    "]]>", "<![CDATA[x]]>", "--", "-->", "<!", "<?xml?>", "javascript:alert(1)", "data:text/html,x", "constructor", "__proto__", "toString",
    "hasOwnProperty", "null", "undefined", "NaN", "true", "0", "-0", "1e999", "", " ", "  two  spaces  ", "\ttab\t", "line\nfeed", "car\rriage", "crlf\r\n",
    "\x00nul", "bell\x07", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "back\x08space", "\x7fdel", "c1\x85\x9b", "soft\u00adhyphen", "zero\u200bwidth",
    "join\u200der", "\u200eltr", "\u200frtl", "\u202aembed", "\u202bembed", "\u202epdf.exe", "\u202dover", "\u202cpop", "\u2066iso\u2069", "\u2067iso", "\u2068iso",
    "\u2028line", "\u2029para", "\ufeffbom", "\ufffe", "\uffff", "\ufffd", "e\u0301", "\u00e9", "I\u0307", "\u0130", "\u1e9e", "\ud55c\uae00", "\u0627\u0644\u0639",
    "\u05e9\u05dc\u05d5\u05dd", "\u4f60\u597d", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U000e0041", "\U0010ffff", "a\u0338", "Z\u0351\u036b\u0343" * 30,
    "=1+1", "@SUM(A1)", "+1", "-1", "|calc", "'; DROP TABLE x; --", "../../etc/passwd", "C:\\x\\y", "\\\\host\\share", "%s%s%n", "{0}", "%(x)s", "a" * 5000,
)  # fmt: skip

HOSTILE = (
    *_TAGS,
    *_TEXT,
    *(f"{text}\u202e{MARK}" for text in _TAGS),
    *(f"{text} {text}" for text in _TAGS),
    *(f"  {text}\x00" for text in _TAGS),
    *(text.upper() for text in _TAGS),
)
assert len(HOSTILE) >= 200
